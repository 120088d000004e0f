// Load on a ledger with k6 (https://k6.io), which checks what the ledger answers: run `k6 run examples/load/ledger.js`, with ADDR, RATE and DURATION
// in the environment or after -e. Messages come from the daemon by reflection. Afterwards: idemd erase k6 --before now --force --yes
import { check } from "k6";
import exec from "k6/execution";
import grpc from "k6/net/grpc";
import { b64encode } from "k6/encoding";

const addr = __ENV.ADDR || "127.0.0.1:7433";
const run = Date.now().toString(36);
const client = new grpc.Client();

export const options = {
  scenarios: {
    // Open: turns begin at the rate whatever the ledger does, so a stall is seen by all that were due meanwhile.
    intents: {
      executor: "constant-arrival-rate",
      rate: Number(__ENV.RATE || 200),
      timeUnit: "1s",
      duration: __ENV.DURATION || "30s",
      preAllocatedVUs: 50,
      maxVUs: 500,
    },
  },
  thresholds: { checks: ["rate==1"], dropped_iterations: ["count==0"], grpc_req_duration: ["p(99)<250"] },
};

export default function () {
  if (exec.vu.iterationInInstance === 0) {
    client.connect(addr, { plaintext: true, reflect: true });
  }
  // Unique for each run, virtual user and iteration.
  const name = `${run}-${exec.vu.idInTest}-${exec.vu.iterationInScenario}`;
  const ref = { tenant: "k6", operation: "bench", key: name };
  const fingerprints = [{ algorithm: "k6-1", hash: b64encode(name.padEnd(32, ".")) }];
  const begin = (prints) =>
    client.invoke("idem.v1.LedgerService/Begin", { ref, fingerprints: prints, attemptId: crypto.randomUUID(), holder: "k6" });

  const first = begin(fingerprints);
  const granted = check(first, { "a new key is granted": (r) => r.status === grpc.StatusOK && r.message.granted.attempt === 1 });
  if (!granted) {
    return;
  }
  const body = b64encode(`answer to ${name}`);
  const done = client.invoke("idem.v1.LedgerService/Complete", {
    ref,
    claimToken: first.message.granted.claimToken,
    response: { body, contentType: "text/plain" },
  });
  check(done, { "it is completed": (r) => r.status === grpc.StatusOK });
  const again = begin(fingerprints);
  check(again, {
    "a retry gets the answer": (r) => r.status === grpc.StatusOK && r.message.completed.replayed && r.message.completed.response.body === body,
  });
  const other = begin([{ algorithm: "k6-1", hash: b64encode(name.padEnd(32, "!")) }]);
  check(other, { "another request is refused": (r) => r.status === grpc.StatusFailedPrecondition });
}
