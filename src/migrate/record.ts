// What Redis keeps of a move: from which data, how far it is, what went wrong; so that it goes on where it was and happens once. Any number of
// processes read it, the one with the lease writes it. Entering it makes a Redis that holds nothing else, and on which no node lives, the target of the
// move. State: none but that.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import { loadScript } from "../redis/script.ts";
import { fact, type MoveTarget } from "./facts.ts";
import { isHeld, type Lease, lostLease } from "./lease.ts";

const enterScript = loadScript(new URL("./lua/enter.lua", import.meta.url));

const FORMAT = "1";
/** Keys looked at in one go. */
const SCAN = 1000;
const LOOK_MS = 100;

/**
 * What may be there before anything is moved: what tells whose data it is, and traces of moves, of nodes that left or died, with their sessions, of
 * failed logins and of waiting for replicas.
 */
const OURS =
  /^[^:]*:(\{all\}:(format|migration|migrating|beats|nodes|clock|fails:.*)|\{u:.*\}:(sessions|logins|ended)|\{w\d*\}:wait)$/s;

/** How far a step is; `total` is about. */
export interface MoveProgress {
  readonly step: string;
  readonly done: number;
  readonly total: number;
}

export interface MoveRecord {
  /** The data it comes from. */
  readonly source: string;
  readonly isDone: boolean;
  /** The step it is at; the last one when it is done. */
  readonly step: string;
  /** Rows of the step that are copied or compared. */
  readonly rows: number;
  /** Rows of the step, about. */
  readonly total: number;
  /** Everything through this row of a table is copied, so many rows of its step; undefined: nothing is. */
  readonly place:
    | { readonly table: string; readonly at: string; readonly rows: number }
    | undefined;
  /** What differed when everything was compared last; "": nothing was found yet. */
  readonly differing: string;
  /** Of the last try, until the next one begins; "": it did not fail. */
  readonly lastErr: string;
  readonly tries: number;
  /** When it began, Unix milliseconds. */
  readonly beganAtMs: number;
}

export type RecordChange = Partial<Omit<MoveRecord, "source" | "beganAtMs">>;

type Link = Pick<RedisLink, "call" | "keys">;

const keyOf = ({ keys }: Pick<Link, "keys">): string =>
  keys.shared("migration");

/** How a move stands. */
export interface MoveNow {
  /** Undefined: nothing was ever moved here. */
  readonly record: MoveRecord | undefined;
  /** A process has the lease. */
  readonly isMoving: boolean;
}

/**
 * The lease is looked at first: a process that takes it later looks for nodes later still, and finds one that asks this after it entered itself. Throws
 * as the link does, and `internal` on a newer format.
 */
export async function readMove(link: Link): Promise<MoveNow> {
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
    place: at ? JSON.parse(at) : undefined,
    beganAtMs: Number(beganAtMs),
  };
}

/** Changes what is kept; what is not named stays. Throws as the link does, and `unavailable` when the lease was lost. */
export function saveRecord(
  target: MoveTarget,
  link: Pick<Link, "keys">,
  change: RecordChange,
): Promise<void> {
  const { isDone, place, lastErr, ...plain } = change;
  const fields = {
    ...plain,
    ...(isDone && { done: "1" }),
    ...(lastErr !== undefined && { err: lastErr }),
    ...("place" in change && { at: place ? JSON.stringify(place) : "" }),
  };
  return target.write([
    fact("HSET", keyOf(link), Object.entries(fields).flat()),
  ]);
}

export interface Entry {
  readonly link: RedisLink;
  readonly lease: Lease;
  /** The data that is to be moved. */
  readonly source: string;
  readonly nowMs: number;
  /** Without a sign of life for so long a node is dead. */
  readonly deadAfterMs: number;
  /** Throws when it is to end. */
  readonly pause: (ms: number) => Promise<void>;
}

/**
 * Makes Redis the target of the move from `source`, if it may be, and returns how far that is. Nodes that are entered there are watched for as long as a
 * living one may be silent. Throws `internal` with a sentence, or as the link does.
 */
export async function enterMove(entry: Entry): Promise<MoveRecord> {
  const { link, lease, source, nowMs } = entry;
  const found = await readRecord(link);
  if (found !== undefined && found.source !== source) throw mixes(link);
  if (found !== undefined) return found;
  const watched = await watchNodes(entry);
  await assertEmpty(link);
  const [key, ...nodes] = ["migration", "beats", "nodes"].map((part) =>
    link.keys.shared(part),
  );
  const fields = ["v", FORMAT, "began", nowMs, "source", source];
  const reply = await link.run(
    enterScript,
    [key ?? "", ...nodes],
    [
      lease.untilOf(key ?? ""),
      fields.length,
      ...fields,
      ...[...watched].flat(),
    ],
  );
  if (reply !== null && String(reply) === "") throw lostLease();
  if (reply !== null) throw lives(link, String(reply));
  const entered = await readRecord(link);
  if (entered === undefined) throw lostLease(); // Redis has lost it meanwhile
  return entered;
}

/** The last signs of nodes of which none gave another for as long as a living one would. Throws `internal` about one that did. */
async function watchNodes({
  link,
  deadAfterMs,
  pause,
}: Entry): Promise<ReadonlyMap<string, string>> {
  const seen = new Map<string, string>();
  for (let untilMs = 0; ; await pause(LOOK_MS)) {
    const now = await signs(link);
    for (const [node, sign] of now) {
      if (!seen.has(node)) untilMs = performance.now() + deadAfterMs;
      else if (seen.get(node) !== sign) throw lives(link, node);
      seen.set(node, sign);
    }
    if (now.size === 0 || performance.now() >= untilMs) return seen;
  }
}

/** When each incarnation gave its last sign, as it is written. */
async function signs(link: Link): Promise<Map<string, string>> {
  const key = link.keys.shared("beats");
  const reply = await link.call("zrange", key, 0, -1, "WITHSCORES");
  const texts = (reply as readonly unknown[]).map(String); // members and scores in turn
  const found = new Map<string, string>();
  for (let at = 0; at + 1 < texts.length; at += 2)
    found.set(texts[at] ?? "", texts[at + 1] ?? "");
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
        throw refusal(
          `Redis is not empty: it holds ${JSON.stringify(foreign)}`,
          link,
        );
    } while (cursor !== "0");
  }
}

/** Two sets of data in one Redis: refused. */
export function mixes(link: Pick<Link, "keys">): BrokerError {
  return refusal(
    "Redis holds data that was moved from another folder; two sets of data are never mixed",
    link,
  );
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
