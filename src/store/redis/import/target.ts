// Where the rows of a move go, how many of its calls wait at once, and until when they may write. State: who stands in the line.

import { Semaphore } from "../../../lib/semaphore.ts";
import type { RedisLink } from "../../../redis/link.ts";

export type MoveLink = Pick<
  RedisLink,
  "call" | "run" | "keys" | "isCluster" | "settings"
>;

export interface MoveTarget {
  readonly link: MoveLink;
  /** Bounds what waits for Redis at once: less than the link takes, whatever a page comes to. */
  readonly line: Semaphore;
  /**
   * Until when the server of a key takes this process's writes, Unix milliseconds of that server's clock: one that was frozen writes nothing over what
   * others did since. Throws `unavailable` when it may not write any more.
   */
  readonly until: (key: string) => number;
}

const MAX_AT_ONCE = 256;
const SHARE = 4;

/** The target of one move; everything it asks of the link stands in one line. */
export function moveTarget(
  link: MoveLink,
  until: MoveTarget["until"],
): MoveTarget {
  const share = Math.floor(link.settings.maxInFlight / SHARE);
  return { link, until, line: new Semaphore(Math.min(MAX_AT_ONCE, share)) };
}
