import {createHash} from 'node:crypto';

// sha256 hashes canonical bytes under the prefix of their algorithm.
export function sha256(algorithm, canonical) {
  return createHash('sha256').update(`idem.fingerprint:${algorithm}\0`, 'utf8').update(canonical).digest('hex');
}
