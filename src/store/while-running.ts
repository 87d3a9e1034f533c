// Creates methods of the Store port from their names, for the embedded driver and the Redis driver.
// Each method calls the method of the same name on a part of the store, or rejects if the store is
// not running.

import type { Lifecycle } from "./lifecycle.ts";

export function whileRunning<
  Running extends object,
  Part extends object,
  Name extends keyof Part & string,
>(
  { use }: Pick<Lifecycle<Running>, "use">,
  part: (running: Running) => Part,
  names: readonly Name[],
): Pick<Part, Name> {
  const calls = names.map((name) => [
    name,
    (...args: readonly unknown[]) => use((running) => call(part(running), name, args)),
  ]);
  return Object.fromEntries(calls) as Pick<Part, Name>; // the methods have the types of `part`
}

/**
 * Does the same as `whileRunning` for all methods of an object that exists before the store starts.
 */
export function allWhileRunning<Part extends object>(
  lifecycle: Pick<Lifecycle<object>, "use">,
  part: Part,
): Part {
  const names = Object.keys(part) as (keyof Part & string)[];
  return whileRunning(lifecycle, () => part, names) as Part; // `names` lists all methods of `part`
}

type Methods<Name extends string> = {
  readonly [Each in Name]: (...args: readonly unknown[]) => unknown;
};

function call<Name extends string>(part: object, name: Name, args: readonly unknown[]): unknown {
  const methods = part as Methods<Name>; // callers pass only names of methods
  return methods[name](...args);
}
