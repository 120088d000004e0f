// Clients from a descriptor set: nothing is generated, and fields have their names of the .proto.
import { readFileSync } from 'node:fs';
import grpc from '@grpc/grpc-js';
import { loadFileDescriptorSetFromBuffer } from '@grpc/proto-loader';

export function load(name) {
  const set = readFileSync(new URL(`../descriptors/${name}`, import.meta.url));
  const definition = loadFileDescriptorSetFromBuffer(set, { longs: String, enums: String, defaults: true, oneofs: true });
  return { packages: grpc.loadPackageDefinition(definition), reason: (error) => reason(definition, error) };
}

// Why idemd, or a guard, refused a call: the word of docs/errors.md. Undefined where the error is not of theirs.
function reason(definition, error) {
  for (const value of error.metadata?.get('grpc-status-details-bin') ?? []) {
    for (const detail of definition['google.rpc.Status'].deserialize(value).details) {
      if (!detail.type_url.endsWith('/google.rpc.ErrorInfo')) continue;
      const info = definition['google.rpc.ErrorInfo'].deserialize(detail.value);
      if (info.domain === 'idem.v1') return info.reason;
    }
  }
  return undefined;
}

// Calls a unary method. seconds is the deadline.
export function call(client, method, request, { metadata = new grpc.Metadata(), seconds = 10 } = {}) {
  return new Promise((resolve, reject) => {
    let trailer;
    const started = client[method](request, metadata, { deadline: Date.now() + seconds * 1000 }, (error, answer) => {
      // The trailer comes in the status, which is told right behind the answer.
      if (error) reject(error);
      else setImmediate(() => resolve({ answer, trailer }));
    });
    started.on('status', (status) => { trailer = status.metadata; });
  });
}

export const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
