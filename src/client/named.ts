// Names an app gives: of options and of events. Types do not hold in JavaScript, where a misspelt name would have no effect. No state.

import { JindouError } from "./errors.ts";

/** Throws `bad_option` unless `given` is an object with names of `known` only, which are separated by spaces. `what` has the names. */
export function checkNames(what: string, given: unknown, known: string): void {
  if (typeof given !== "object" || given === null)
    throw badOption(`${what} must be an object`);
  for (const name of Object.keys(given)) checkName(what, name, known);
}

/** Throws `bad_option` when `name` is not in `known`. */
export function checkName(what: string, name: string, known: string): void {
  if (!known.split(" ").includes(name))
    throw badOption(`${what}: there is no "${name}", only ${known}`);
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
