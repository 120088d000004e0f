// Adds a line to a file, once for each key, with nothing between this program and idemd: node once.js IDEMD KEY FILE LINE
import { createHash, randomUUID } from 'node:crypto';
import { appendFileSync, readFileSync } from 'node:fs';
import grpc from '@grpc/grpc-js';
import { call, load, pause } from './stubs.js';

const { packages, reason } = load('idem.binpb');

class Ledger {
  constructor(address) {
    this.client = new packages.idem.v1.LedgerService(address, grpc.credentials.createInsecure());
  }

  // Sends one request until it is answered. The same request, attempt id and all: that is never a second attempt.
  async call(method, request) {
    for (let resend = 0; ; resend++) {
      try {
        return (await call(this.client, method, request)).answer;
      } catch (error) {
        const away = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED].includes(error.code);
        if (!away || resend === 7) throw error;
      }
      await pause(Math.min(100 * 2 ** resend, 2000));
    }
  }

  // Runs work unless it was run before. Gives what it answered, now or then.
  async once(operation, key, request, work) {
    const ref = { operation, key };
    const hash = createHash('sha256').update('idem.fingerprint:bytes-sha256-v1\0').update(request).digest();
    const begun = await this.call('begin', {
      ref, attempt_id: randomUUID(), holder: `once.js/${process.pid}`, wait: { seconds: 5 },
      fingerprints: [{ algorithm: 'bytes-sha256-v1', hash }],
    });
    switch (begun.outcome) {
      case 'completed':
        if (begun.completed.response.body_omitted) throw new Error('it was done before, and its answer was not kept');
        return { outcome: 'replayed', answer: begun.completed.response.body };
      case 'failed':
        throw new Error(`it failed before: ${begun.failed.status.message}`);
      case 'in_progress':
        throw new Error(`somebody else is at it: ask again in ${begun.in_progress.retry_after.seconds} s`);
    }
    const claim = { ref, claim_token: begun.granted.claim_token };
    const giveUp = (code, message) => this.call('fail', { ...claim, status: { code, message }, disposition: 'DISPOSITION_UNKNOWN' });
    if (begun.granted.previous_abandoned && !begun.granted.on_credit) { // on_credit: an operator has looked, and says to run it
      // Nobody knows whether an earlier attempt did it. A program that can find out does so here, and then settles.
      await giveUp(grpc.status.ABORTED, 'not run: an earlier attempt is in doubt');
      throw new Error('an earlier attempt is in doubt');
    }
    let answer;
    try {
      answer = await work();
    } catch (error) { // whatever ended it: the work may have got half-way
      await giveUp(grpc.status.UNKNOWN, String(error));
      throw error;
    }
    try {
      await this.call('complete', { ...claim, response: { body: answer, content_type: 'text/plain' } });
    } catch (error) { // it is done all the same: never fail now, and never run it again here
      console.error(`done, but not recorded: ${error.details}`);
    }
    return { outcome: 'executed', answer };
  }
}

const [address, key, path, line] = process.argv.slice(2);
const ledger = new Ledger(address);
try {
  const { outcome, answer } = await ledger.once('append-line', key, Buffer.from(line), async () => {
    appendFileSync(path, `${line}\n`);
    return Buffer.from(`line ${readFileSync(path, 'utf8').split('\n').length - 1}`);
  });
  console.log(`${outcome}: ${answer}`);
} catch (error) {
  const why = error.code === undefined ? error.message : `${reason(error) ?? grpc.status[error.code]} ${error.details}`;
  console.error(`refused: ${why}`);
  process.exitCode = 1;
}
ledger.client.close();
