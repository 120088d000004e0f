// The canonical form of proto-sha256-v1, a walk of the message by its descriptor.

import {createFileRegistry, fromBinary, getExtension, ScalarType} from '@bufbuild/protobuf';
import {reflect} from '@bufbuild/protobuf/reflect';
import {FeatureSet_FieldPresence, FileDescriptorSetSchema} from '@bufbuild/protobuf/wkt';
import {BinaryReader} from '@bufbuild/protobuf/wire';
import {MAX_DEPTH, Refused} from './refused.js';

const MAX_ANYS = 8;
const HASH_EXCLUDE = 51731;
const EXCLUDED = new Map();
const NOTHING = new Map();

export function readDescriptors(bytes) {
  return createFileRegistry(fromBinary(FileDescriptorSetSchema, bytes));
}

export class ProtoHasher {
  constructor(registry, typeName, {exclude, name, strict}) {
    this.registry = registry;
    this.descriptor = registry.getMessage(typeName);
    this.name = name ?? typeName;
    this.strict = strict;
    this.unknown = 0;
    this.opaque = 0;
    this.excluded = new Map();
    for (const path of exclude) {
      let step = this.excluded;
      let message = this.descriptor;
      const names = path.split('.');
      names.forEach((name, i) => {
        const field = message.fields.find(field => field.name === name);
        if (i === names.length - 1) {
          step.set(field.number, EXCLUDED);
          return;
        }
        if (!step.has(field.number)) {
          step.set(field.number, new Map());
        }
        step = step.get(field.number);
        message = field.message;
      });
    }
  }

  canonical(wire) {
    const message = parse(this.descriptor, wire, 'parse');
    return Buffer.concat([text(utf8(this.name)), ...this.message(message, this.excluded, 1, 0)]);
  }

  leaveOut(count) {
    this.unknown += count;
    if (count > 0 && this.strict) {
      throw new Refused('unknown-fields');
    }
  }

  // message gives the pieces of the VALUE of a message, which comes as a ReflectMessage.
  message(reflected, excluded, depth, anys) {
    if (depth > MAX_DEPTH) {
      throw new Refused('too-deep');
    }
    const {desc: descriptor, message} = reflected;
    const unknown = (message.$unknown ?? []).map(field => field.no);
    if (descriptor.typeName === 'google.protobuf.Any') {
      this.leaveOut(unknown.length);
      return this.any(message, depth, anys);
    }
    const present = []; // [field, value, what is excluded below]
    for (const field of descriptor.fields) {
      const below = excluded.get(field.number) ?? NOTHING;
      if (below !== EXCLUDED && !markedExcluded(field) && reflected.isSet(field)) {
        present.push([field, reflected.get(field), below]);
      }
    }
    // Extensions are among the unknown fields until somebody asks for them.
    const extensions = new Set(unknown.map(number => this.registry.getExtensionFor(descriptor, number)));
    extensions.delete(undefined);
    for (const extension of extensions) {
      if (!markedExcluded(extension)) {
        present.push([extension, getExtension(message, extension), NOTHING]);
      }
    }
    this.leaveOut(unknown.filter(number => this.registry.getExtensionFor(descriptor, number) === undefined).length);

    const out = [Buffer.from([0x05])];
    present.sort(([a], [b]) => a.number - b.number);
    for (const [field, value, below] of present) {
      const encoded = this.field(field, value, below, depth, anys);
      if (encoded !== undefined) {
        out.push(u32(field.number), ...encoded);
      }
    }
    out.push(u32(0));
    return out;
  }

  // field gives the pieces of a field's VALUE, or undefined when nothing is left of the field.
  field(field, value, below, depth, anys) {
    const one = item => {
      if (field.message !== undefined) {
        // A singular extension's value comes as it is.
        return this.message(item.desc === undefined ? reflect(field.message, item, false) : item, below, depth + 1, anys);
      }
      return [field.enum !== undefined ? integer(BigInt(item)) : scalar(field.scalar, item)];
    };
    const declared = item => {
      if (field.enum === undefined || field.enum.open || field.enum.values.some(value => value.number === item)) {
        return true;
      }
      this.leaveOut(1);
      return false;
    };
    switch (field.fieldKind) {
      case 'list': {
        const items = [...value].filter(declared);
        return items.length === 0 ? undefined : [Buffer.from([0x06]), u32(items.length), ...items.flatMap(one)];
      }
      case 'map': {
        const entries = [...value].filter(([, item]) => declared(item)).map(([key, item]) => {
          const written = scalar(field.mapKey, key);
          return {written, order: written.subarray(field.mapKey === ScalarType.STRING ? 5 : 1), item};
        });
        entries.sort((a, b) => Buffer.compare(a.order, b.order));
        return entries.length === 0 ? undefined :
          [Buffer.from([0x07]), u32(entries.length), ...entries.flatMap(({written, item}) => [written, ...one(item)])];
      }
      default: {
        const implicit = field.presence === FeatureSet_FieldPresence.IMPLICIT;
        const float = field.scalar === ScalarType.FLOAT || field.scalar === ScalarType.DOUBLE;
        return implicit && float && value === 0 || !declared(value) ? undefined : one(value); // -0 === 0
      }
    }
  }

  any(any, depth, anys) {
    const name = any.typeUrl.slice(any.typeUrl.lastIndexOf('/') + 1);
    const descriptor = this.registry.getMessage(name);
    if (descriptor === undefined) {
      if (any.typeUrl !== '' || any.value.length > 0) {
        this.opaque++;
        if (this.strict) {
          throw new Refused('opaque-any');
        }
      }
      return [Buffer.from([0x09]), text(utf8(any.typeUrl)), text(any.value)];
    }
    if (anys === MAX_ANYS) {
      throw new Refused('too-deep');
    }
    const inner = parse(descriptor, any.value, 'bad-any');
    return [Buffer.from([0x08]), text(utf8(name)), ...this.message(inner, NOTHING, depth + 1, anys + 1)];
  }
}

function parse(descriptor, bytes, reason) {
  try {
    return reflect(descriptor, fromBinary(descriptor, bytes), false);
  } catch {
    throw new Refused(reason);
  }
}

// markedExcluded says whether a field has [(idem.v1.hash_exclude) = true]. Nobody registered that option with the
// descriptors of descriptors, so it is an unknown field of the options.
function markedExcluded(field) {
  const option = (field.proto.options?.$unknown ?? []).findLast(option => option.no === HASH_EXCLUDE);
  return option !== undefined && new BinaryReader(option.data).bool();
}

function u32(number) {
  const out = Buffer.alloc(4);
  out.writeUInt32BE(number);
  return out;
}

function text(bytes) {
  return Buffer.concat([u32(bytes.length), bytes]);
}

function utf8(string) {
  return Buffer.from(string, 'utf8');
}

function integer(value) {
  const out = Buffer.alloc(9);
  out[0] = 0x01;
  out.writeBigUInt64BE(BigInt.asUintN(64, value), 1);
  return out;
}

// scalar gives the VALUE of a scalar.
function scalar(type, value) {
  switch (type) {
    case ScalarType.STRING:
      return Buffer.concat([Buffer.from([0x04]), text(utf8(value))]);
    case ScalarType.BYTES:
      return Buffer.concat([Buffer.from([0x04]), text(value)]);
    case ScalarType.FLOAT: {
      const out = Buffer.from([0x02, 0x7f, 0xc0, 0, 0]);
      if (!Number.isNaN(value)) {
        out.writeFloatBE(value + 0, 1); // -0 + 0 is 0
      }
      return out;
    }
    case ScalarType.DOUBLE: {
      const out = Buffer.from([0x03, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0]);
      if (!Number.isNaN(value)) {
        out.writeDoubleBE(value + 0, 1);
      }
      return out;
    }
    default:
      return integer(BigInt(value)); // a bool is 0 or 1
  }
}
