// The record of a move in Redis: its source, watermark and last error, so that it is resumed and
// happens once. All processes read it, the one with the lease writes it. It is created only in a
// Redis that holds nothing else and on which no node lives. State: in Redis only.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";
import { isHeld, type Lease, lostLease } from "./lease.ts";

const enterScript = loadScript(new URL("./lua/enter.lua", import.meta.url));
const saveScript = loadScript(new URL("./lua/save_record.lua", import.meta.url));

const FORMAT = "1";
/** Keys per SCAN. */
const SCAN = 1000;
const LOOK_MS = 100;

/**
 * Keys that an empty Redis may hold: the format, earlier moves, nodes that left or died with their
 * sessions, failed logins, replication marks.
 */
const OURS =
  /^[^:]*:(\{all\}:(format|migration|migrating|beats|nodes|clock|fails:.*)|\{u:.*\}:(sessions|logins|ended)|\{w\d*\}:wait)$/s;

/** Progress of a step; `total` is approximate. */
export interface MoveProgress {
  readonly step: string;
  readonly done: number;
  readonly total: number;
}

export interface MoveRecord {
  /** The id of the folder's data. */
  readonly source: string;
  readonly isDone: boolean;
  /** The current step, or the last one when it is done. */
  readonly step: string;
  /** Rows of the step that are copied or compared. */
  readonly rows: number;
  /** Rows of the step, approximately. */
  readonly total: number;
  /**
   * Everything through this row of a table is copied, `rows` rows of its step; undefined: nothing.
   */
  readonly watermark:
    | { readonly table: string; readonly at: string; readonly rows: number }
    | undefined;
  /** The differences that the last comparison found; "": none. */
  readonly differing: string;
  /** Of the last attempt, until the next one begins; "": it did not fail. */
  readonly lastErr: string;
  readonly tries: number;
  /** When it began, Unix milliseconds. */
  readonly beganAtMs: number;
}

export type RecordChange = Partial<Omit<MoveRecord, "source" | "beganAtMs">>;

type Link = Pick<RedisLink, "call" | "keys">;

const keyOf = ({ keys }: Pick<Link, "keys">): string => keys.shared("migration");

/** A move as other processes see it. */
export interface MoveSnapshot {
  /** Undefined: nothing was ever moved here. */
  readonly record: MoveRecord | undefined;
  /** A process has the lease. */
  readonly isMoving: boolean;
}

/**
 * Reads the lease before the record: a process that takes the lease later finds the caller among
 * the living nodes, if the caller had sent a heartbeat. Throws as the link does, and `internal` on
 * a newer format.
 */
export async function readMove(link: Link): Promise<MoveSnapshot> {
  const isMoving = await isHeld(link);
  return { isMoving, record: await readRecord(link) };
}

async function readRecord(link: Link): Promise<MoveRecord | undefined> {
  const names = ["v", "source", "done", "step", "rows", "total", "at"];
  const more = ["differing", "err", "tries", "began"];
  const reply = await link.call("hmget", keyOf(link), ...names, ...more);
  const [format, source, done, step, rows, total, at, ...rest] = (
    reply as readonly (Buffer | null)[]
  ).map((field) => String(field ?? "")); // HMGET's reply
  const [differing = "", lastErr = "", tries, beganAtMs] = rest;
  if (source === undefined || source === "") return undefined;
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a migration of format ${format}; this build reads ${FORMAT}`,
    });
  return {
    ...{ source, isDone: done === "1", step: step ?? "", differing, lastErr },
    ...{ rows: Number(rows), total: Number(total), tries: Number(tries) },
    watermark: at ? JSON.parse(at) : undefined,
    beganAtMs: Number(beganAtMs),
  };
}

/**
 * Changes the named fields. Throws as the link does, and `unavailable` when the lease or the record
 * was lost.
 */
export async function saveRecord(
  link: Pick<RedisLink, "run" | "keys">,
  lease: Pick<Lease, "key" | "token">,
  change: RecordChange,
): Promise<void> {
  const { isDone, watermark, lastErr, ...plain } = change;
  const fields = {
    ...plain,
    ...(isDone && { done: "1" }),
    ...(lastErr !== undefined && { err: lastErr }),
    ...("watermark" in change && {
      at: watermark ? JSON.stringify(watermark) : "",
    }),
  };
  const keys = [keyOf(link), lease.key];
  const args = [lease.token, ...Object.entries(fields).flat()];
  if ((await link.run(saveScript, keys, args)) !== 1) throw lostLease();
}

interface Entry {
  readonly link: RedisLink;
  readonly lease: Lease;
  /** The id of the folder's data. */
  readonly source: string;
  readonly nowMs: number;
  /** A node without a heartbeat for so long is dead. */
  readonly deadAfterMs: number;
  /** Throws when the attempt must end. */
  readonly pause: (ms: number) => Promise<void>;
}

/**
 * Creates the record of the move from `source`, or returns the one that exists. Waits for
 * `deadAfterMs` where nodes are registered, to find out whether one lives. Throws `internal` with
 * an error message, or as the link does.
 */
export async function enterMove(entry: Entry): Promise<MoveRecord> {
  const { link, lease, source, nowMs } = entry;
  const found = await readRecord(link);
  if (found !== undefined && found.source !== source)
    throw refusal(
      "Redis holds data that was moved from another folder; two sets of data are never mixed",
      link,
    );
  if (found !== undefined) return found;
  const watched = await watchNodes(entry);
  await assertEmpty(link);
  const { keys } = link;
  const fields = ["v", FORMAT, "began", nowMs, "source", source];
  const reply = await link.run(
    enterScript,
    [keyOf(link), keys.shared("beats"), keys.shared("nodes"), lease.key],
    [lease.token, fields.length, ...fields, ...[...watched].flat()],
  );
  if (reply !== null && String(reply) === "") throw lostLease();
  if (reply !== null) throw lives(link, String(reply));
  const entered = await readRecord(link);
  if (entered === undefined) throw lostLease(); // Redis lost it in the meantime
  return entered;
}

/**
 * The last heartbeats of nodes that sent no other one for `deadAfterMs`. Throws `internal` if a
 * node did.
 */
async function watchNodes({
  link,
  deadAfterMs,
  pause,
}: Entry): Promise<ReadonlyMap<string, string>> {
  const seen = new Map<string, string>();
  for (let untilMs = 0; ; await pause(LOOK_MS)) {
    const now = await heartbeats(link);
    for (const [node, beat] of now) {
      if (!seen.has(node)) untilMs = performance.now() + deadAfterMs;
      else if (seen.get(node) !== beat) throw lives(link, node);
      seen.set(node, beat);
    }
    if (now.size === 0 || performance.now() >= untilMs) return seen;
  }
}

/** The last heartbeat of each incarnation, as stored. */
async function heartbeats(link: Link): Promise<Map<string, string>> {
  const key = link.keys.shared("beats");
  const reply = await link.call("zrange", key, 0, -1, "WITHSCORES");
  const texts = (reply as readonly unknown[]).map(String); // members and scores in turn
  const found = new Map<string, string>();
  for (let at = 0; at + 1 < texts.length; at += 2) found.set(texts[at] ?? "", texts[at + 1] ?? "");
  return found;
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
        throw refusal(`Redis is not empty: it holds ${JSON.stringify(foreign)}`, link);
    } while (cursor !== "0");
  }
}

function lives(link: Pick<Link, "keys">, incarnation: string): BrokerError {
  const node = JSON.stringify(incarnation.replace(/:[^:]*$/, ""));
  return new BrokerError("internal", {
    message: `The node ${node} runs on this Redis; stop all nodes before data is moved into it, or choose another redis.prefix than ${link.keys.prefix}`,
  });
}

function refusal(sentence: string, { keys }: Pick<Link, "keys">): BrokerError {
  return new BrokerError("internal", {
    message: `${sentence}. Choose another redis.prefix than ${keys.prefix}, or remove its keys`,
  });
}
