// The canonical form of json-sha256-v1. JSON.parse cannot be used: it rounds numbers and takes duplicate members.

import {MAX_DEPTH, Refused} from './refused.js';

// jsonCanonical gives the canonical text of one JSON text, without the values that the pointers name.
export function jsonCanonical(bytes, pointers) {
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true}).decode(bytes);
  } catch {
    throw new Refused('invalid-utf8');
  }
  if (/^[ \t\r\n]*$/.test(text)) {
    throw new Refused('empty');
  }
  const excluded = new Map();
  for (const pointer of pointers) {
    let step = excluded;
    const tokens = pointer.split('/').slice(1).map(token => token.replaceAll('~1', '/').replaceAll('~0', '~'));
    for (const token of tokens.slice(0, -1)) {
      if (!step.has(token)) {
        step.set(token, new Map());
      }
      step = step.get(token);
    }
    step.set(tokens.at(-1), EXCLUDED);
  }
  const parser = new Parser(text);
  const canonical = parser.value(excluded, 0);
  parser.space();
  if (parser.at < text.length) {
    throw new Refused('syntax');
  }
  return canonical;
}

const EXCLUDED = new Map();
const NOTHING = new Map();

class Parser {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  // take gives what a sticky pattern matches here, and goes past it.
  take(pattern) {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match === null) {
      return undefined;
    }
    this.at = pattern.lastIndex;
    return match;
  }

  space() {
    this.take(/[ \t\r\n]*/y);
  }

  // skip goes past a character, if that is what comes next.
  skip(char) {
    this.space();
    if (this.text[this.at] !== char) {
      return false;
    }
    this.at++;
    return true;
  }

  value(excluded, depth) {
    this.space();
    const char = this.text[this.at];
    if (char === '{' || char === '[') {
      if (depth === MAX_DEPTH) {
        throw new Refused('too-deep');
      }
      this.at++;
      return char === '{' ? this.object(excluded, depth + 1) : this.array(excluded, depth + 1);
    }
    if (char === '"') {
      return quote(this.string());
    }
    const literal = this.take(/true|false|null/y);
    if (literal !== undefined) {
      return literal[0];
    }
    const number = this.take(/(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?/y);
    if (number === undefined) {
      throw new Refused('syntax');
    }
    return canonicalNumber(...number.slice(1));
  }

  array(excluded, depth) {
    const elements = [];
    if (this.skip(']')) {
      return '[]';
    }
    for (let index = 0; ; index++) {
      const below = excluded.get(String(index)) ?? NOTHING;
      const element = this.value(below, depth);
      if (below !== EXCLUDED) {
        elements.push(element);
      }
      if (this.skip(']')) {
        return `[${elements.join(',')}]`;
      }
      if (!this.skip(',')) {
        throw new Refused('syntax');
      }
    }
  }

  object(excluded, depth) {
    const members = new Map();
    const kept = [];
    if (this.skip('}')) {
      return '{}';
    }
    for (;;) {
      this.space();
      const name = this.string();
      if (members.has(name)) {
        throw new Refused('duplicate-name');
      }
      if (!this.skip(':')) {
        throw new Refused('syntax');
      }
      const below = excluded.get(name) ?? NOTHING;
      members.set(name, this.value(below, depth));
      if (below !== EXCLUDED) {
        kept.push(name);
      }
      if (this.skip('}')) {
        kept.sort(); // by UTF-16 code units, as JavaScript does
        return `{${kept.map(name => `${quote(name)}:${members.get(name)}`).join(',')}}`;
      }
      if (!this.skip(',')) {
        throw new Refused('syntax');
      }
    }
  }

  string() {
    const written = this.take(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    if (written === undefined) {
      throw new Refused('syntax');
    }
    const string = JSON.parse(written[0]);
    if (/\p{Surrogate}/u.test(string)) {
      throw new Refused('lone-surrogate');
    }
    return string;
  }
}

// quote writes a string; for one without lone surrogates, JSON.stringify does what RFC 8785 says.
function quote(string) {
  return JSON.stringify(string);
}

function canonicalNumber(sign, whole, fraction = '', exponent = '0') {
  const digits = whole + fraction;
  const stripped = digits.replace(/0+$/, '');
  const power = Number(exponent) - fraction.length + digits.length - stripped.length;
  const significant = stripped.replace(/^0+/, '');
  if (significant === '') {
    return '0';
  }
  if (Math.abs(power) > 999_999_999) {
    throw new Refused('exponent');
  }
  return sign + significant + (power === 0 ? '' : `e${power}`);
}
