#!/usr/bin/env node
// Checks testdata/vectors.json with an implementation of docs/fingerprint.md in JavaScript, on protobuf-es.
// It shares nothing with the Go package but that page and those vectors. Run `npm ci` in this folder first.
//
// usage: verify.js [vectors.json]

import {readFileSync} from 'node:fs';
import {sha256} from './digest.js';
import {jsonCanonical} from './json.js';
import {ProtoHasher, readDescriptors} from './proto.js';
import {Refused} from './refused.js';

const checks = {
  proto(vector, registries) {
    const hasher = new ProtoHasher(registries[vector.descriptors], vector.message, {
      exclude: vector.exclude ?? [],
      name: vector.hashed_name,
      strict: vector.strict ?? false,
    });
    const canonical = hasher.canonical(Buffer.from(vector.wire, 'hex'));
    return {
      canonical: canonical.toString('hex'),
      hash: sha256('proto-sha256-v1', canonical),
      unknown_fields: hasher.unknown,
      opaque_anys: hasher.opaque,
    };
  },
  json(vector) {
    const bytes = vector.hex !== undefined ? Buffer.from(vector.hex, 'hex') : Buffer.from(vector.text ?? '', 'utf8');
    const canonical = jsonCanonical(bytes, vector.exclude ?? []);
    return {canonical, hash: sha256('json-sha256-v1', Buffer.from(canonical, 'utf8'))};
  },
  bytes(vector) {
    const bytes = vector.pattern !== undefined
      ? Uint8Array.from({length: vector.pattern}, (_, i) => i % 251)
      : Buffer.from(vector.hex ?? '', 'hex');
    if (bytes.length === 0) {
      throw new Refused('empty');
    }
    return {hash: sha256('bytes-sha256-v1', bytes)};
  },
};

const vectors = JSON.parse(readFileSync(process.argv[2] ?? new URL('../testdata/vectors.json', import.meta.url), 'utf8'));
const registries = {};
for (const [name, encoded] of Object.entries(vectors.descriptors)) {
  registries[name] = readDescriptors(Buffer.from(encoded, 'base64'));
}

let passed = 0;
let failed = 0;
let skipped = 0;
for (const [kind, check] of Object.entries(checks)) {
  for (const vector of vectors[kind]) {
    if (vector.not_in?.includes('node')) {
      console.log(`${kind}: ${vector.name}: skipped, protobuf-es cannot read this message as it was sent`);
      skipped++;
      continue;
    }
    let got;
    try {
      got = check(vector, registries);
    } catch (error) {
      if (!(error instanceof Refused)) {
        throw error;
      }
      got = {error: error.reason};
    }
    const same = Object.entries(got).every(([field, value]) => vector[field] === value);
    // A parser that refuses what has no fingerprint anyway agrees with it.
    if (same || got.error === 'parse' && vector.error !== undefined) {
      passed++;
      continue;
    }
    failed++;
    console.log(`${kind}: ${vector.name}`);
    for (const [field, value] of Object.entries(got)) {
      console.log(`  ${field}: got ${value}, want ${vector[field] ?? vector.error}`);
    }
  }
}
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
