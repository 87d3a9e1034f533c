// How much of the same a test does: a fifth by default, all of it with JINDOU_TEST_VOLUME=full
// (`npm run test:full`). State: none.

const IS_FULL = process.env.JINDOU_TEST_VOLUME === "full";

/** `full` or a fifth of it, or what the environment variable `name` says; at least 1, in whole. */
export function volume(full: number, name?: string): number {
  const given = name === undefined ? undefined : process.env[name];
  if (given !== undefined) return Number(given);
  return IS_FULL ? full : Math.max(1, Math.round(full / 5));
}
