// Creates methods of a store's port from their names, for both drivers. A call is passed on while
// the store runs, and rejected otherwise. No state.

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
  return Object.fromEntries(calls) as Pick<Part, Name>; // the same names, parameters and results
}

/** Like `whileRunning`, for all methods of a `part` that exists before the store runs. */
export function allWhileRunning<Part extends object>(
  lifecycle: Pick<Lifecycle<object>, "use">,
  part: Part,
): Part {
  const names = Object.keys(part) as (keyof Part & string)[];
  return whileRunning(lifecycle, () => part, names) as Part; // contains all of its names
}

type Methods<Name extends string> = {
  readonly [Each in Name]: (...args: readonly unknown[]) => unknown;
};

function call<Name extends string>(part: object, name: Name, args: readonly unknown[]): unknown {
  const methods = part as Methods<Name>; // `whileRunning` only accepts names of methods
  return methods[name](...args);
}
