// Names an app gives: of options and of events. Types do not hold in JavaScript, where a misspelt name would have no effect. No state.

import { JindouError } from "./errors.ts";

/** The names of a type, checked for completeness by the compiler. */
export type Names<T> = Readonly<Record<keyof T, 1>>;

/** Throws `bad_option` unless `given` is an object with names of `known` only. `what` says what the names belong to. */
export function checkNames<T>(
  what: string,
  given: unknown,
  known: Names<T>,
): void {
  if (typeof given !== "object" || given === null)
    throw badOption(`${what} must be an object`);
  for (const name of Object.keys(given)) checkName(what, name, known);
}

/** Throws `bad_option` when `name` is not in `known`. */
export function checkName<T>(
  what: string,
  name: string,
  known: Names<T>,
): void {
  if (!Object.hasOwn(known, name))
    throw badOption(
      `${what}: there is no ${JSON.stringify(name)}, only ${Object.keys(known).join(", ")}`,
    );
}

/** `message` says what to pass. */
export function badOption(message: string): JindouError {
  return new JindouError("bad_option", { message });
}

/** `name` is what the id was given as. */
export function badId(name: string): JindouError {
  return new JindouError("bad_id", {
    message: `${name} must have 1 to 128 characters, no control characters and none of @ # &`,
  });
}
