#!/usr/bin/python3
"""Adds a line to a file, once for each key, with nothing between this program and idemd: once.py IDEMD KEY FILE LINE"""

import hashlib
import os
import sys
import time
import uuid

import grpc

from stubs import Stubs

stubs = Stubs(os.path.join(os.path.dirname(__file__), "../descriptors/idem.binpb"))
FINAL, RETRYABLE, UNKNOWN = 1, 2, 3  # idem.v1.Disposition


class Ledger:
    def __init__(self, channel):
        self._calls = {name: stubs.method(channel, "idem.v1.LedgerService", name) for name in ("Begin", "Complete", "Fail")}

    def call(self, name, **fields):
        """Sends one request until it is answered. The same request, attempt id and all: that is never a second attempt."""
        request = stubs.message("idem.v1.%sRequest" % name)(**fields)
        for resend in range(8):
            try:
                return self._calls[name](request, timeout=10)
            except grpc.RpcError as error:
                away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
                if not away or resend == 7:
                    raise
            time.sleep(min(0.1 * 2**resend, 2))

    def once(self, operation, key, request, work):
        """Runs work unless it was run before. Gives what it answered, now or then."""
        ref = {"operation": operation, "key": key}
        digest = hashlib.sha256(b"idem.fingerprint:bytes-sha256-v1\0" + request).digest()
        begun = self.call(
            "Begin", ref=ref, attempt_id=str(uuid.uuid4()), holder="once.py/%d" % os.getpid(), wait={"seconds": 5},
            fingerprints=[{"algorithm": "bytes-sha256-v1", "hash": digest}])
        outcome = begun.WhichOneof("outcome")
        if outcome == "completed":
            if begun.completed.response.body_omitted:
                sys.exit("it was done before, and its answer was not kept")
            return "replayed", begun.completed.response.body
        if outcome == "failed":
            sys.exit("it failed before: " + begun.failed.status.message)
        if outcome == "in_progress":
            sys.exit("somebody else is at it: ask again in %d s" % begun.in_progress.retry_after.seconds)
        claim = {"ref": ref, "claim_token": begun.granted.claim_token}
        if begun.granted.previous_abandoned and not begun.granted.on_credit:  # on_credit: an operator has looked, and says to run it
            # Nobody knows whether an earlier attempt did it. A program that can find out does so here, and then settles.
            self.call("Fail", status={"code": 10, "message": "not run: an earlier attempt is in doubt"}, disposition=UNKNOWN, **claim)
            sys.exit("an earlier attempt is in doubt")
        try:
            answer = work()
        except BaseException as error:  # whatever ended it: the work may have got half-way
            self.call("Fail", status={"code": 2, "message": repr(error)}, disposition=UNKNOWN, **claim)
            raise
        try:
            self.call("Complete", response={"body": answer, "content_type": "text/plain"}, **claim)
        except grpc.RpcError as error:  # it is done all the same: never Fail now, and never run it again here
            print("done, but not recorded: %s" % error.details(), file=sys.stderr)
        return "executed", answer


def main(idemd, key, path, line):
    def append():
        with open(path, "a+") as file:
            file.write(line + "\n")
            file.seek(0)
            return b"line %d" % len(file.readlines())

    with grpc.insecure_channel(idemd) as channel:
        try:
            outcome, answer = Ledger(channel).once("append-line", key, line.encode(), append)
        except grpc.RpcError as error:
            sys.exit("refused: %s %s" % (stubs.reason(error) or error.code().name, error.details()))
    print("%s: %s" % (outcome, answer.decode()))


if __name__ == "__main__":
    main(*sys.argv[1:])
