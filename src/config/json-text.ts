// Parses the JSON of settings. Unlike `JSON.parse`, it reports the line of each error and the keys
// that occur more than once in an object. It never quotes the text, which may contain secrets.

interface JsonText {
  readonly value: unknown;
  readonly repeatedKeys: readonly RepeatedKey[];
}

interface RepeatedKey {
  /** Path from the top of the document, for example `managers[0].password`. */
  readonly path: string;
  readonly lines: readonly number[];
}

export class JsonTextError extends Error {
  readonly line: number;

  constructor(line: number) {
    super(`not valid JSON (line ${line})`);
    this.name = "JsonTextError";
    this.line = line;
  }
}

const MAX_DEPTH = 32;
const SPACE = /[\t\n\r ]*/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: JSON does not allow them in a string
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"/y;
const SCALAR = /true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[Ee][+-]?\d+)?/y;

/** Parses JSON. If a key is repeated, the last value is used. Throws JsonTextError. */
export function parseJsonText(text: string): JsonText {
  const parser = new Parser(text);
  return { value: parser.document(), repeatedKeys: parser.repeatedKeys };
}

class Parser {
  readonly repeatedKeys: RepeatedKey[] = [];
  readonly #text: string;
  #position = 0;

  constructor(text: string) {
    this.#text = text;
  }

  document(): unknown {
    const value = this.#value("", 0);
    if (this.#position < this.#text.length) this.#fail();
    return value;
  }

  #value(path: string, depth: number): unknown {
    this.#match(SPACE);
    if (depth > MAX_DEPTH) this.#fail();
    const value = this.#bareValue(path, depth);
    this.#match(SPACE);
    return value;
  }

  #bareValue(path: string, depth: number): unknown {
    if (this.#skip("{")) return this.#object(path, depth);
    if (this.#skip("[")) return this.#array(path, depth);
    const scalar = this.#match(STRING) ?? this.#match(SCALAR) ?? this.#fail();
    return JSON.parse(scalar);
  }

  #object(path: string, depth: number): unknown {
    const fields = new Map<string, unknown>();
    const lines = new Map<string, readonly number[]>();
    this.#match(SPACE);
    if (this.#skip("}")) return {};
    do {
      this.#match(SPACE);
      const line = this.#line();
      const name: string = JSON.parse(this.#match(STRING) ?? this.#fail());
      this.#match(SPACE);
      if (!this.#skip(":")) this.#fail();
      lines.set(name, [...(lines.get(name) ?? []), line]);
      fields.set(name, this.#value(path === "" ? name : `${path}.${name}`, depth + 1));
    } while (this.#skip(","));
    if (!this.#skip("}")) this.#fail();
    for (const [name, places] of lines)
      if (places.length > 1)
        this.repeatedKeys.push({ path: path === "" ? name : `${path}.${name}`, lines: places });
    return Object.fromEntries(fields); // unlike an assignment, works for a field named `__proto__`
  }

  #array(path: string, depth: number): unknown {
    const items: unknown[] = [];
    this.#match(SPACE);
    if (this.#skip("]")) return items;
    do items.push(this.#value(`${path}[${items.length}]`, depth + 1));
    while (this.#skip(","));
    if (!this.#skip("]")) this.#fail();
    return items;
  }

  #skip(character: string): boolean {
    if (this.#text[this.#position] !== character) return false;
    this.#position += 1;
    return true;
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#position;
    const match = pattern.exec(this.#text)?.[0];
    this.#position += match?.length ?? 0;
    return match;
  }

  #line(): number {
    return this.#text.slice(0, this.#position).split("\n").length;
  }

  #fail(): never {
    throw new JsonTextError(this.#line());
  }
}
