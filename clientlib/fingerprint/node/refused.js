// Refused says that the input has no fingerprint, and the specification's word for why.
export class Refused extends Error {
  constructor(reason) {
    super(reason);
    this.reason = reason;
  }
}

// How deep messages, or JSON arrays and objects, may nest.
export const MAX_DEPTH = 100;
