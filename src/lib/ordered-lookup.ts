// A table whose names are looked up again and again in the same order, such as the headers of
// requests. Comparing a name with the last name at the same place in this order is faster than
// hashing the name.

/** Maximum length of a remembered name. Clients send the names, which may be long. */
const MAX_NAME_LENGTH = 64;

export class OrderedLookup<Value> {
  readonly #values: ReadonlyMap<string, Value>;
  readonly #maxPlaces: number;
  readonly #lastNames: string[] = [];
  /** Value of each name in `#lastNames`, `undefined` if the table lacks the name. */
  readonly #lastValues: (Value | undefined)[] = [];

  /**
   * Remembers the last name at each of the first `maxPlaces` places (see `get`). `values` must not
   * change.
   */
  constructor(values: ReadonlyMap<string, Value>, maxPlaces: number) {
    this.#values = values;
    this.#maxPlaces = maxPlaces;
  }

  /**
   * Returns the value of `name`, or `undefined` if the table lacks the name. `place` is the number
   * of names that were looked up before this name for the same request or object.
   */
  get(name: string, place: number): Value | undefined {
    if (this.#lastNames[place] === name) return this.#lastValues[place];
    const value = this.#values.get(name);
    if (place < this.#maxPlaces && name.length <= MAX_NAME_LENGTH) {
      this.#lastNames[place] = name;
      this.#lastValues[place] = value;
    }
    return value;
  }
}
