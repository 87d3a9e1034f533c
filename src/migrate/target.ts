// Whether a Redis may take a move: it holds nothing under our prefix, or this very move. State: none.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import type { Lease } from "./lease.ts";
import { assertNobodyLives, type Watch } from "./living.ts";
import {
  enterRecord,
  isClaim,
  type MoveRecord,
  readRecord,
  saveRecord,
  withdrawRecord,
} from "./record.ts";

/** Keys looked at in one go. */
const SCAN = 1000;

/**
 * What may be there before anything is moved: what tells whose data it is, and traces of moves, of nodes that left or died, with their sessions, of failed
 * logins and of waiting for replicas. */
const OURS =
  /^[^:]*:(\{all\}:(format|migration|migrating|beats|nodes|clock|fails:.*)|\{u:.*\}:(sessions|logins|ended)|\{w\d*\}:wait)$/s;

export interface Claim {
  readonly link: RedisLink;
  readonly lease: Lease;
  /** The data that is to be moved. */
  readonly source: string;
  readonly nowMs: number;
  /** See `Watch`. */
  readonly deadAfterMs: Watch["deadAfterMs"];
  readonly pause: Watch["pause"];
}

/**
 * Makes Redis the target of the move from `source`, if it may be, and returns how far that is. The claim stands before Redis is looked through: a node
 * that begins to serve meanwhile reads it after it entered itself, so that one sees the other, and leaves. Throws `internal` with a sentence, or as the link does.
 */
export async function claimTarget(claim: Claim): Promise<MoveRecord> {
  const { link, source, nowMs } = claim;
  const found = await readRecord(link);
  if (found === undefined || isClaim(found))
    await enterRecord(claim, source, nowMs); // who claimed it is gone: it had the right
  const record = await readRecord(link);
  if (record?.source !== source) throw mixes(link);
  if (record.isDone || record.isAlone) return record;
  try {
    await assertNobodyLives(claim);
    claim.lease.assertHeld();
    await assertEmpty(link);
  } catch (error) {
    await withdrawRecord(claim).catch(() => undefined); // without anybody it counts for nothing
    throw error;
  }
  await saveRecord(claim, { isAlone: true });
  return record;
}

/** Two sets of data in one Redis: refused. */
export function mixes(link: RedisLink): BrokerError {
  return refusal(
    "Redis holds data that was moved from another folder; two sets of data are never mixed",
    link,
  );
}

async function assertEmpty(link: RedisLink): Promise<void> {
  const pattern = `${link.keys.prefix}:*`;
  for (const node of link.primaries()) {
    let cursor = "0";
    do {
      const [next, found] = await node.scan(
        ...([cursor, "MATCH", pattern, "COUNT", SCAN] as const),
      );
      cursor = next;
      const foreign = found.find((key) => !OURS.test(key));
      if (foreign !== undefined)
        throw refusal(
          `Redis is not empty: it holds ${JSON.stringify(foreign)}`,
          link,
        );
    } while (cursor !== "0");
  }
}

function refusal(sentence: string, { keys }: RedisLink): BrokerError {
  return new BrokerError("internal", {
    message: `${sentence}. Choose another redis.prefix than ${keys.prefix}, or remove its keys`,
  });
}
