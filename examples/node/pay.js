// Charges an account at a service that idemd guards: node pay.js SERVICE KEY ACCOUNT CENTS
//
// All that a client has to do is to send the key, and to send the same one when it tries again.
import grpc from '@grpc/grpc-js';
import { call, load, pause } from './stubs.js';

const { packages, reason } = load('payments.binpb');

// What may end otherwise when asked again. Nobody has to find out first whether the charge was made: the key sees to that.
const tryAgain = [grpc.status.UNAVAILABLE, grpc.status.ABORTED, grpc.status.DEADLINE_EXCEEDED];

async function pay(service, key, request) {
  const metadata = new grpc.Metadata();
  metadata.set('idempotency-key', key);
  for (let attempt = 0; ; attempt++) {
    try {
      return await call(service, 'charge', request, { metadata });
    } catch (error) {
      if (!tryAgain.includes(error.code) || attempt === 9) throw error;
    }
    await pause(Math.min(100 * 2 ** attempt, 2000));
  }
}

const [address, key, account, cents] = process.argv.slice(2);
const service = new packages.payments.v1.PaymentsService(address, grpc.credentials.createInsecure());
try {
  const { answer, trailer } = await pay(service, key, { account, amount_cents: cents });
  console.log(`${trailer.get('idem-outcome')}: charge ${answer.charge_id}, ${answer.total_cents} cents in all`);
} catch (error) {
  console.error(`refused: ${reason(error) ?? grpc.status[error.code]} ${error.details}`);
  process.exitCode = 1;
}
service.close();
