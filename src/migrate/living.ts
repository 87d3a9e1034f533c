// Whether nodes live on a Redis that is to take a move: none may, for they would write among what is moved. State: none.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";

const buryScript = loadScript(new URL("./lua/bury.lua", import.meta.url));

const LOOK_MS = 100;

export interface Watch {
  readonly link: Pick<RedisLink, "call" | "run" | "keys">;
  /** Without a sign of life for so long a node is dead. */
  readonly deadAfterMs: number;
  /** Throws when the watch is to end. */
  readonly pause: (ms: number) => Promise<void>;
}

/**
 * Resolves at once where no node is entered, else when none of them gave a sign of life for as long as a living one would, and those count as dead:
 * one that was only cut off comes back as another incarnation, and is to look for a move then. Throws `internal` with a sentence about one that lives, or
 * as the link does. Who comes later sees the move and leaves: the move is to be entered before this is called.
 */
export async function assertNobodyLives(watch: Watch): Promise<void> {
  const seen = await signs(watch);
  if (seen.size === 0) return;
  const untilMs = performance.now() + watch.deadAfterMs;
  while (performance.now() < untilMs) {
    await watch.pause(LOOK_MS);
    for (const [one, sign] of await signs(watch)) {
      if (seen.has(one) && seen.get(one) !== sign) throw lives(watch, one);
      seen.set(one, sign);
    }
  }
  await bury(watch, seen);
}

async function bury(
  watch: Watch,
  seen: ReadonlyMap<string, string>,
): Promise<void> {
  const { link } = watch;
  const keys = ["beats", "nodes"].map((part) => link.keys.shared(part));
  const reply = await link.run(buryScript, keys, [...seen].flat());
  if (reply !== null) throw lives(watch, String(reply));
}

/** When each incarnation gave its last sign, as it is written. */
async function signs({ link }: Watch): Promise<Map<string, string>> {
  const key = link.keys.shared("beats");
  const reply = await link.call("zrange", key, 0, -1, "WITHSCORES");
  const texts = (reply as readonly unknown[]).map(String); // members and scores in turn
  const found = new Map<string, string>();
  for (let at = 0; at + 1 < texts.length; at += 2)
    found.set(texts[at] ?? "", texts[at + 1] ?? "");
  return found;
}

function lives({ link }: Watch, incarnation: string): BrokerError {
  const node = JSON.stringify(incarnation.replace(/:[^:]*$/, ""));
  return new BrokerError("internal", {
    message: `The node ${node} runs on this Redis; stop all nodes before data is moved into it, or choose another redis.prefix than ${link.keys.prefix}`,
  });
}
