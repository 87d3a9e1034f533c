// Reduces the work of tests: by default, an eighth of the repetitions and a quarter of the
// combinations are run. JINDOU_TEST_VOLUME=full (`npm run test:full`) runs all of them.

/** True if all tests run in the full volume, as under `npm run test:full`. */
export const IS_FULL = process.env.JINDOU_TEST_VOLUME === "full";

/**
 * Returns the number of repetitions: `full` in the full volume, otherwise `few`. The environment
 * variable `name`, if it is set, overrides both.
 */
export function volume(
  full: number,
  name?: string,
  few = Math.max(1, Math.round(full / 8)),
): number {
  const override = name === undefined ? undefined : process.env[name];
  if (override !== undefined) return Number(override);
  return IS_FULL ? full : few;
}

/** Returns every fourth item, beginning with the first. Returns all items in the full volume. */
export function sample<Item>(items: Iterable<Item>): Item[] {
  return [...items].filter((_, at) => IS_FULL || at % 4 === 0);
}
