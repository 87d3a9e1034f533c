// A migration's record in Redis: its source, watermark and last error. All processes read the
// record, and the process with the lease writes it. The record is created only if no other data is
// stored under `redis.prefix` and no node is live.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";
import { isHeld, type Lease, lostLease } from "./lease.ts";

const enterScript = loadScript(new URL("./lua/enter.lua", import.meta.url));
const saveScript = loadScript(new URL("./lua/save_record.lua", import.meta.url));

/** Steps that copy data, in order. A later step needs the data of the earlier steps. */
export const MOVE_STEPS = ["user", "channel", "message"] as const;

const FORMAT = "1";
const WATCH_MS = 100;
const DEAD_AFTER = /"cluster\.deadAfterMs":(\d+)/;

const IGNORED_KEYS =
  /^[^:]*:(\{all\}:(format|migration|migrating|beats|nodes|settings|clock|fails:.*)|\{u:.*\}:(sessions|logins|ended)|\{w\d*\}:wait)$/s;

/** A step's progress, in rows. `total` is approximate. */
export interface MoveProgress {
  readonly step: string;
  readonly done: number;
  readonly total: number;
}

export interface MoveRecord {
  readonly source: string;
  readonly isDone: boolean;
  /** Current step, or the last step if the migration has ended. */
  readonly step: string;
  readonly rows: number;
  readonly total: number;
  /**
   * Last copied row, and the number of rows of its step up to and including that row. `undefined`
   * if no row was copied.
   */
  readonly watermark:
    | { readonly table: string; readonly at: string; readonly rows: number }
    | undefined;
  /** Differences that the last comparison found, or "" if there are none. */
  readonly differing: string;
  /**
   * Error of the last attempt, or "" if that attempt did not fail. Reset to "" when the next
   * attempt starts.
   */
  readonly lastErr: string;
  readonly tries: number;
  readonly beganAtMs: number;
}

/**
 * Error that is thrown if Redis still differs from the folder in the same way after a second copy.
 * Retrying cannot help.
 */
export class StuckMoveError extends BrokerError {
  readonly beganAtMs: number;

  constructor(differing: string, beganAtMs: number) {
    super("internal", {
      message: `Redis differs from the folder, even after everything was copied again. Remove the keys under redis.prefix and start the migration again. Differences: ${differing}`,
    });
    this.name = "StuckMoveError";
    this.beganAtMs = beganAtMs;
  }
}

export type RecordChange = Partial<Omit<MoveRecord, "source" | "beganAtMs">>;

type Link = Pick<RedisLink, "call" | "keys">;

const keyOf = ({ keys }: Pick<Link, "keys">): string => keys.shared("migration");

export interface MoveSnapshot {
  readonly record: MoveRecord | undefined;
  readonly isMoving: boolean;
}

/**
 * Reads the lease and then the record. A node that sent a heartbeat before this call can rely on
 * the result, because a process that acquires the lease later sees the heartbeat and does not start
 * a migration.
 */
export async function readMove(link: Link): Promise<MoveSnapshot> {
  const isMoving = await isHeld(link);
  return { isMoving, record: await readRecord(link) };
}

async function readRecord(link: Link): Promise<MoveRecord | undefined> {
  const names = ["v", "source", "done", "step", "rows", "total", "at"];
  const otherNames = ["differing", "err", "tries", "began"];
  const reply = await link.call("hmget", keyOf(link), ...names, ...otherNames);
  const [format, source, done, step, rows, total, at, ...others] = (
    reply as readonly (Buffer | null)[]
  ).map((field) => String(field ?? "")); // the reply of HMGET
  const [differing = "", lastErr = "", tries, beganAtMs] = others;
  if (source === undefined || source === "") return undefined;
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis contains a migration of format ${format}, but this version reads only format ${FORMAT}. Use a newer version`,
    });
  return {
    ...{ source, isDone: done === "1", step: step ?? "", differing, lastErr },
    ...{ rows: Number(rows), total: Number(total), tries: Number(tries) },
    watermark: at ? JSON.parse(at) : undefined,
    beganAtMs: Number(beganAtMs),
  };
}

/** Changes fields of the record. Throws `unavailable` if the lease or the record was lost. */
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

interface EntryOptions {
  readonly link: RedisLink;
  readonly lease: Lease;
  readonly source: string;
  readonly nowMs: number;
  /**
   * This process's `cluster.deadAfterMs`. If a registered node has a higher value, that value is
   * used.
   */
  readonly deadAfterMs: number;
  readonly pause: (ms: number) => Promise<void>;
}

/**
 * Returns the existing record, or creates one. Before it creates one, watches the registered nodes
 * (see `watchNodes`) to make sure that no node is live. Throws `internal` if the migration must not
 * start, and `unavailable` if the lease or the record is lost.
 */
export async function enterMove(options: EntryOptions): Promise<MoveRecord> {
  const { link, lease, source, nowMs } = options;
  const existing = await readRecord(link);
  if (existing !== undefined && existing.source !== source)
    throw refusal(
      "Redis contains the data of a different folder, and the data of two folders is never mixed",
      link,
    );
  if (existing !== undefined) return existing;
  const deadNodes = await watchNodes(options);
  await assertEmpty(link);
  const { keys } = link;
  const fields = ["v", FORMAT, "began", nowMs, "source", source];
  const reply = await link.run(
    enterScript,
    [keyOf(link), keys.shared("beats"), keys.shared("nodes"), lease.key],
    [lease.token, fields.length, ...fields, ...[...deadNodes].flat()],
  );
  if (reply !== null && String(reply) === "") throw lostLease();
  if (reply !== null) throw liveNodeError(link, String(reply));
  const entered = await readRecord(link);
  if (entered === undefined) throw lostLease(); // Redis has lost the new record
  return entered;
}

/**
 * Waits until every registered node has been silent for its own `cluster.deadAfterMs` and for that
 * of this process. Returns the nodes' last heartbeats. Throws `internal` if a node sends another
 * heartbeat.
 */
async function watchNodes({
  link,
  deadAfterMs,
  pause,
}: EntryOptions): Promise<ReadonlyMap<string, string>> {
  const lastBeats = new Map<string, string>();
  for (let untilMs = 0; ; await pause(WATCH_MS)) {
    const current = await heartbeats(link);
    for (const [node, beat] of current) {
      if (!lastBeats.has(node)) {
        const silenceMs = Math.max(deadAfterMs, await announcedDeadAfterMs(link, node));
        untilMs = Math.max(untilMs, performance.now() + silenceMs);
      } else if (lastBeats.get(node) !== beat) throw liveNodeError(link, node);
      lastBeats.set(node, beat);
    }
    if (current.size === 0 || performance.now() >= untilMs) return lastBeats;
  }
}

async function heartbeats(link: Link): Promise<Map<string, string>> {
  const key = link.keys.shared("beats");
  const reply = await link.call("zrange", key, 0, -1, "WITHSCORES");
  const texts = (reply as readonly unknown[]).map(String); // alternating members and scores
  const beats = new Map<string, string>();
  for (let at = 0; at + 1 < texts.length; at += 2) beats.set(texts[at] ?? "", texts[at + 1] ?? "");
  return beats;
}

/** Returns the node's `cluster.deadAfterMs`, or 0 if the node does not announce it. */
async function announcedDeadAfterMs(link: Link, node: string): Promise<number> {
  const announcement = await link.call("hmget", link.keys.shared("nodes"), node);
  return Number(DEAD_AFTER.exec(String(announcement))?.[1] ?? 0);
}

async function assertEmpty(link: RedisLink): Promise<void> {
  for await (const key of link.allKeys())
    if (!IGNORED_KEYS.test(key))
      throw refusal(`Redis is not empty: it contains the key ${JSON.stringify(key)}`, link);
}

function liveNodeError(link: Pick<Link, "keys">, incarnation: string): BrokerError {
  const node = JSON.stringify(incarnation.replace(/:[^:]*$/, ""));
  return new BrokerError("internal", {
    message: `The node ${node} uses this Redis. Stop all nodes before you migrate data to this Redis, or choose a redis.prefix other than ${link.keys.prefix}`,
  });
}

function refusal(sentence: string, { keys }: Pick<Link, "keys">): BrokerError {
  return new BrokerError("internal", {
    message: `${sentence}. Choose a redis.prefix other than ${keys.prefix}, or remove the keys of this prefix`,
  });
}
