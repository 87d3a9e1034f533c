// What Redis keeps of a move: from which data, how far it is, what went wrong; so that it goes on where it was and happens once. Any number of
// processes read it, the one with the lease writes it. State: none but that.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import type { Arg } from "../redis/script.ts";
import { loadScript } from "../redis/script.ts";
import type { MovePlace, MoveStep } from "../store/moved.ts";
import { isHeld, type Lease, lostRight } from "./lease.ts";

const saveScript = loadScript(
  new URL("./lua/save_record.lua", import.meta.url),
);

/** Follows the steps that copy. */
export const VERIFY_STEP = "verify";

/** How far a step is; `total` is about. */
export interface MoveProgress {
  readonly step: string;
  readonly done: number;
  readonly total: number;
}

const FORMAT = "1";

/** What is known of a move by those who wait for it. */
export interface MoveRecord {
  /** The data it comes from. */
  readonly source: string;
  readonly isDone: boolean;
  /** Nothing else was in Redis after it was entered. */
  readonly isAlone: boolean;
  /** The step it is at; the last one when it is done. */
  readonly step: string;
  /** How far it is within the steps that copy; undefined: at the beginning. */
  readonly place: (MovePlace & { readonly step: MoveStep }) | undefined;
  /** Rows of the step that are copied. */
  readonly rows: number;
  /** Rows that are compared, once it compares. */
  readonly compared: number;
  /** Rows of the step, about. */
  readonly total: number;
  /** What differed when everything was compared last; "": nothing was found yet. */
  readonly differing: string;
  readonly lastErr: string | undefined;
  readonly tries: number;
  /** When it began, Unix milliseconds. */
  readonly beganAtMs: number;
}

type Link = Pick<RedisLink, "call" | "keys">;

/** Who may write: with a right that was lost in the meantime nothing is written. */
export interface RecordWriter {
  readonly link: Pick<RedisLink, "run" | "keys">;
  readonly lease: Pick<Lease, "key" | "token">;
}

const keyOf = ({ keys }: Pick<Link, "keys">): string =>
  keys.shared("migration");

/** Undefined: nothing was ever moved here. Throws as the link does, and `internal` on a newer format. */
export async function readRecord(link: Link): Promise<MoveRecord | undefined> {
  const reply = await link.call("hgetall", keyOf(link));
  const of = fieldsIn(reply);
  const source = of.get("source");
  if (source === undefined) return undefined;
  const format = of.get("v");
  if (format !== FORMAT)
    throw new BrokerError("internal", {
      message: `Redis holds a migration of format ${format}; this build reads ${FORMAT}`,
    });
  const place = of.get("place") ?? "";
  return {
    source,
    isDone: of.get("done") === "1",
    isAlone: of.get("alone") === "1",
    step: of.get("step") ?? "",
    place: place === "" ? undefined : JSON.parse(place),
    rows: Number(of.get("rows") ?? 0),
    compared: Number(of.get("compared") ?? 0),
    total: Number(of.get("total") ?? 0),
    differing: of.get("differing") ?? "",
    lastErr: of.get("err") || undefined,
    tries: Number(of.get("tries") ?? 0),
    beganAtMs: Number(of.get("began") ?? 0),
  };
}

/** How a move stands. */
export interface MoveNow {
  /** Undefined: nothing was ever moved here, or a claim is there whose process is gone. */
  readonly record: MoveRecord | undefined;
  /** A process has the right to move. */
  readonly isMoving: boolean;
}

/**
 * For all but who has the right. The right is looked at first: who takes it after that looks for nodes later still, so a node that is entered
 * beforehand may pass by a claim without anybody. Throws as `readRecord`.
 */
export async function readMove(link: Link): Promise<MoveNow> {
  const isMoving = await isHeld(link);
  const record = await readRecord(link);
  const isVoid = !isMoving && isClaim(record);
  return { record: isVoid ? undefined : record, isMoving };
}

/** It is entered, but nothing was moved yet: it is withdrawn when the Redis may not take it. */
export function isClaim(record: MoveRecord | undefined): boolean {
  return record !== undefined && !record.isAlone && !record.isDone;
}

/** How far the move is. */
export function progressIn(record: MoveRecord | undefined): MoveProgress {
  if (record === undefined) return { step: "", done: 0, total: 0 };
  const { step, rows, compared, total } = record;
  return { step, done: step === VERIFY_STEP ? compared : rows, total };
}

/** A hash's fields and values, in whichever of its two forms the reply came. */
function fieldsIn(reply: unknown): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  if (!Array.isArray(reply)) {
    for (const [name, value] of Object.entries(reply as object))
      found.set(name, String(value));
    return found;
  }
  for (let at = 0; at + 1 < reply.length; at += 2)
    found.set(String(reply[at]), String(reply[at + 1]));
  return found;
}

/** Enters the move of `source` in place of what was entered. Throws as the link does, and `unavailable` when the right was lost. */
export function enterRecord(
  writer: RecordWriter,
  source: string,
  nowMs: number,
): Promise<void> {
  const fields = ["v", FORMAT, "began", nowMs, "source", source];
  return write(writer, "new", fields);
}

/** As if it had never been entered. Throws as `enterRecord`. */
export function withdrawRecord(writer: RecordWriter): Promise<void> {
  return write(writer, "none", []);
}

/** Changes what is kept. Undefined fields stay. Throws as `enterRecord`. */
export function saveRecord(
  writer: RecordWriter,
  change: Partial<
    Omit<MoveRecord, "source" | "place" | "lastErr" | "beganAtMs">
  > & {
    readonly place?: MoveRecord["place"] | "beginning";
    readonly lastErr?: string;
  },
): Promise<void> {
  const { isDone, isAlone, place, lastErr, ...plain } = change;
  const fields = {
    ...{ done: isDone && "1", alone: isAlone && "1", ...plain, err: lastErr },
    place: place === "beginning" ? "" : place && JSON.stringify(place),
  };
  const items = Object.entries(fields).flatMap(([name, value]) =>
    value === undefined || value === false ? [] : [name, value],
  );
  return write(writer, "over", items);
}

async function write(
  { link, lease }: RecordWriter,
  how: "new" | "over" | "none",
  items: readonly Arg[],
): Promise<void> {
  const args = [lease.token, how, ...items];
  const reply = await link.run(saveScript, [keyOf(link), lease.key], args);
  if (reply !== 1) throw lostRight();
}
