// The methods of a store's port, taken while the store runs and refused otherwise: made from the
// names, for both drivers. No state.

import type { Lifecycle } from "./lifecycle.ts";

/** Those methods of `part`, each as a call of the lifecycle. */
export function guarded<
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
    (...asked: readonly unknown[]) => use((running) => call(part(running), name, asked)),
  ]);
  return Object.fromEntries(calls) as Pick<Part, Name>; // the same names, arguments and replies
}

/** All methods of a part that is there before the store runs. */
export function guardedAll<Part extends object>(
  lifecycle: Pick<Lifecycle<object>, "use">,
  part: Part,
): Part {
  const names = Object.keys(part) as (keyof Part & string)[];
  return guarded(lifecycle, () => part, names) as Part; // all of its names
}

type Methods<Name extends string> = {
  readonly [Each in Name]: (...asked: readonly unknown[]) => unknown;
};

function call<Name extends string>(part: object, name: Name, asked: readonly unknown[]): unknown {
  const methods = part as Methods<Name>; // the type of `guarded` names them
  return methods[name](...asked);
}
