#!/usr/bin/python3
"""Charges an account at a service that idemd guards: pay.py SERVICE KEY ACCOUNT CENTS

All that a client has to do is to send the key, and to send the same one when it tries again."""

import os
import sys
import time

import grpc

from stubs import Stubs

stubs = Stubs(os.path.join(os.path.dirname(__file__), "../descriptors/payments.binpb"))

# What may end otherwise when asked again. Nobody has to find out first whether the charge was made: the key sees to that.
TRY_AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.DEADLINE_EXCEEDED)


def pay(charge, key, request):
    for attempt in range(10):
        try:
            return charge.with_call(request, metadata=[("idempotency-key", key)], timeout=10)
        except grpc.RpcError as error:
            if error.code() not in TRY_AGAIN or attempt == 9:
                raise
        time.sleep(min(0.1 * 2**attempt, 2))


def main(service, key, account, cents):
    request = stubs.message("payments.v1.ChargeRequest")(account=account, amount_cents=int(cents))
    with grpc.insecure_channel(service) as channel:
        try:
            answer, call = pay(stubs.method(channel, "payments.v1.PaymentsService", "Charge"), key, request)
        except grpc.RpcError as error:
            sys.exit("refused: %s %s" % (stubs.reason(error) or error.code().name, error.details()))
    outcome = dict(call.trailing_metadata())["idem-outcome"]  # executed, or replayed
    print("%s: charge %s, %d cents in all" % (outcome, answer.charge_id, answer.total_cents))


if __name__ == "__main__":
    main(*sys.argv[1:])
