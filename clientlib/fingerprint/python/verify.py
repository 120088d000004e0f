#!/usr/bin/env python3
"""Checks testdata/vectors.json with an implementation of docs/fingerprint.md in Python.

It shares nothing with the Go package but that page and those vectors. It needs the protobuf package
(Debian: python3-protobuf, run with /usr/bin/python3).

usage: verify.py [vectors.json]
"""

import base64
import hashlib
import json
import math
import pathlib
import re
import struct
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

MAX_DEPTH = 100
MAX_ANYS = 8
HASH_EXCLUDE = 51731


class Refused(Exception):
    """The input has no fingerprint; the argument is the reason."""


def digest(algorithm, canonical):
    return hashlib.sha256(b"idem.fingerprint:" + algorithm + b"\0" + canonical).hexdigest()


# ---------------------------------------------------------------- protobuf

def u32(number):
    return struct.pack(">I", number)


def text(data):
    return u32(len(data)) + data


def utf8(string):
    if isinstance(string, bytes):
        raise Refused("invalid-utf8")  # how protobuf hands out a proto2 string that is not UTF-8
    try:
        return string.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("invalid-utf8") from None


def new_message(pool, descriptor):
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)()
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)()


def marked_excluded(field):
    # The options of a descriptor from a pool of its own do not know the extension, so it is unknown there.
    marked = False
    for option in unknown_fields.UnknownFieldSet(field.GetOptions()):
        if option.field_number == HASH_EXCLUDE:
            marked = bool(option.data)
    return marked


class ProtoHasher:
    def __init__(self, pool, descriptor, exclude=(), name=None, strict=False):
        self.pool = pool
        self.descriptor = descriptor
        self.name = name or descriptor.full_name
        self.strict = strict
        self.exclude = {}
        for path in exclude:
            self.add_path(path.split("."))
        self.unknown = 0
        self.opaque = 0

    def add_path(self, names):
        step, descriptor = self.exclude, self.descriptor
        for name in names[:-1]:
            field = descriptor.fields_by_name[name]
            step = step.setdefault(field.number, {})
            descriptor = field.message_type
            if descriptor.GetOptions().map_entry:
                descriptor = descriptor.fields_by_name["value"].message_type
        step[descriptor.fields_by_name[names[-1]].number] = None

    def canonical(self, wire):
        message = new_message(self.pool, self.descriptor)
        try:
            message.ParseFromString(wire)
        except DecodeError:
            raise Refused("parse") from None
        return text(self.name.encode()) + self.message(message, self.exclude, 1, 0)

    def leave_out(self, count):
        self.unknown += count
        if count and self.strict:
            raise Refused("unknown-fields")

    def message(self, message, exclude, depth, anys):
        """The VALUE of a message; exclude maps field numbers to what is excluded below, None for all of it."""
        if depth > MAX_DEPTH:
            raise Refused("too-deep")
        self.leave_out(len(unknown_fields.UnknownFieldSet(message)))
        if message.DESCRIPTOR.full_name == "google.protobuf.Any":
            return self.any(message, depth, anys)
        out = b"\x05"
        # ListFields is in the order of the field numbers, with extensions, and without what is not present.
        for field, value in message.ListFields():
            below = (exclude or {}).get(field.number, {}) if not field.is_extension else {}
            if below is None or marked_excluded(field):
                continue
            encoded = self.field(field, value, below, depth, anys)
            if encoded is not None:
                out += u32(field.number) + encoded
        return out + u32(0)

    def field(self, field, value, exclude, depth, anys):
        def one(of, item):
            if of.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
                return self.message(item, exclude, depth + 1, anys)
            return scalar(of, item)

        if field.label == FieldDescriptor.LABEL_REPEATED:
            entry = field.message_type
            if entry is not None and entry.GetOptions().map_entry:
                key, item = entry.fields_by_name["key"], entry.fields_by_name["value"]
                prefix = 5 if key.type == FieldDescriptor.TYPE_STRING else 1  # type byte and a string's length
                keys = sorted(value, key=lambda k: scalar(key, k)[prefix:])
                return b"\x07" + u32(len(keys)) + b"".join(scalar(key, k) + one(item, value[k]) for k in keys)
            return b"\x06" + u32(len(value)) + b"".join(one(field, item) for item in value)
        if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            if value == 0 and not field.has_presence:
                return None
        return one(field, value)

    def any(self, message, depth, anys):
        name = message.type_url.rpartition("/")[2]
        try:
            descriptor = self.pool.FindMessageTypeByName(name)
        except KeyError:
            if message.type_url or message.value:
                self.opaque += 1
                if self.strict:
                    raise Refused("opaque-any") from None
            return b"\x09" + text(utf8(message.type_url)) + text(message.value)
        if anys == MAX_ANYS:
            raise Refused("too-deep")
        inner = new_message(self.pool, descriptor)
        try:
            inner.MergeFromString(message.value)
        except DecodeError:
            raise Refused("bad-any") from None
        return b"\x08" + text(name.encode()) + self.message(inner, None, depth + 1, anys + 1)


def scalar(field, value):
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        if math.isnan(value):
            return b"\x02\x7f\xc0\0\0"
        return b"\x02" + struct.pack(">f", 0.0 if value == 0 else value)
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        if math.isnan(value):
            return b"\x03\x7f\xf8\0\0\0\0\0\0"
        return b"\x03" + struct.pack(">d", 0.0 if value == 0 else value)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return b"\x04" + text(utf8(value) if field.type == FieldDescriptor.TYPE_STRING else value)
    return b"\x01" + struct.pack(">Q", int(value) & 0xFFFFFFFFFFFFFFFF)


# ---------------------------------------------------------------- JSON

class Number:
    """A number in its canonical form."""

    def __init__(self, written):
        sign, whole, fraction, exponent = re.fullmatch(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?", written).groups()
        exponent = exponent or "0"
        digits = whole + (fraction or "")
        power = int(exponent.lstrip("+-0")[:20] or "0")  # 20 digits are beyond the bound, whatever follows them
        power = (-power if exponent[0] == "-" else power) - len(fraction or "")
        stripped = digits.rstrip("0")
        power += len(digits) - len(stripped)
        stripped = stripped.lstrip("0")
        if not stripped:
            self.text = "0"
        elif abs(power) > 999999999:
            raise Refused("exponent")
        else:
            self.text = sign + stripped + (f"e{power}" if power else "")


def members(pairs):
    if len({name for name, _ in pairs}) != len(pairs):
        raise Refused("duplicate-name")
    return dict(pairs)


def no_constant(_):
    raise Refused("syntax")  # NaN and the infinities, which Python's parser would take


def json_canonical(raw, exclude):
    try:
        string = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("invalid-utf8") from None
    if not string.strip(" \t\r\n"):
        raise Refused("empty")
    try:
        value = json.loads(string, parse_int=Number, parse_float=Number, parse_constant=no_constant, object_pairs_hook=members)
    except ValueError:
        raise Refused("syntax") from None
    tree = {}
    for pointer in exclude:
        step, tokens = tree, [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
        for token in tokens[:-1]:
            step = step.setdefault(token, {})
        step[tokens[-1]] = None
    return json_text(value, tree, 0).encode("utf-8")


def json_text(value, exclude, depth):
    if isinstance(value, Number):
        return value.text
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return json_string(value)
    if depth == MAX_DEPTH:
        raise Refused("too-deep")
    if isinstance(value, list):
        parts = ((json_text(item, exclude.get(str(i), {}) or {}, depth + 1), exclude.get(str(i), {})) for i, item in enumerate(value))
        return "[" + ",".join(part for part, below in parts if below is not None) + "]"
    out = []
    # A lone surrogate has no place in UTF-16; json_string refuses it, so here it may sort anywhere.
    for name in sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass")):
        below = exclude.get(name, {})
        member = json_string(name) + ":" + json_text(value[name], below or {}, depth + 1)
        if below is not None:
            out.append(member)
    return "{" + ",".join(out) + "}"


SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def json_string(string):
    if any("\ud800" <= char <= "\udfff" for char in string):
        raise Refused("lone-surrogate")
    return '"' + "".join(SHORT.get(char) or (f"\\u{ord(char):04x}" if char < " " else char) for char in string) + '"'


# ---------------------------------------------------------------- the vectors

def check_proto(vector, pools):
    pool = pools[vector["descriptors"]]
    hasher = ProtoHasher(pool, pool.FindMessageTypeByName(vector["message"]), vector.get("exclude", ()),
                         vector.get("hashed_name"), vector.get("strict", False))
    canonical = hasher.canonical(bytes.fromhex(vector["wire"]))
    return {"canonical": canonical.hex(), "hash": digest(b"proto-sha256-v1", canonical),
            "unknown_fields": hasher.unknown, "opaque_anys": hasher.opaque}


def check_json(vector, _):
    raw = bytes.fromhex(vector["hex"]) if "hex" in vector else vector.get("text", "").encode("utf-8")
    canonical = json_canonical(raw, vector.get("exclude", ()))
    return {"canonical": canonical.decode("utf-8"), "hash": digest(b"json-sha256-v1", canonical)}


def check_bytes(vector, _):
    data = bytes(i % 251 for i in range(vector["pattern"])) if "pattern" in vector else bytes.fromhex(vector.get("hex", ""))
    if not data:
        raise Refused("empty")
    return {"hash": digest(b"bytes-sha256-v1", data)}


class Pools(dict):
    """Descriptor pools by name, each made when it is first needed: not every version of protobuf can make all."""

    def __init__(self, encoded):
        super().__init__()
        self.encoded = encoded

    def __missing__(self, name):
        pool = self[name] = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(self.encoded[name])).file:
            pool.Add(file)
        return pool


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "vectors.json"
    vectors = json.loads(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else default).read_text("utf-8"))
    pools = Pools(vectors["descriptors"])

    passed = failed = skipped = 0
    for kind, check in (("proto", check_proto), ("json", check_json), ("bytes", check_bytes)):
        for vector in vectors[kind]:
            if "python" in vector.get("not_in", ()):
                print(f"{kind}: {vector['name']}: skipped, Python's protobuf cannot read this message as it was sent")
                skipped += 1
                continue
            try:
                got = check(vector, pools)
            except Refused as refusal:
                got = {"error": str(refusal)}
            want = {name: vector[name] for name in got if name in vector}
            # A parser that refuses what has no fingerprint anyway agrees with it.
            if got == want or got == {"error": "parse"} and "error" in vector:
                passed += 1
                continue
            failed += 1
            print(f"{kind}: {vector['name']}\n  got  {got}\n  want {({name: vector.get(name) for name in (*got, 'error')})}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
