// One attempt at a move: the rows of each step are copied page by page, each page's place is kept in Redis behind it, then everything is read once
// more on both sides and compared. Whatever ends it, the next attempt goes on from the last place; where Redis lost something, from the beginning.
// State: none but Redis'.

import { BrokerError } from "../broker/errors.ts";
import { MOVE_STEPS, type MoveSource, type MoveStep } from "../store/moved.ts";
import {
  differenceOf,
  MoveGap,
  raiseIds,
  writeRows,
} from "../store/redis/import.ts";
import { MoveCounts } from "../store/redis/import-counts.ts";
import {
  type MoveLink,
  type MoveTarget,
  moveTarget,
} from "../store/redis/import-target.ts";
import { type Page, pagesOf } from "./pages.ts";
import { type MoveRecord, type RecordWriter, saveRecord } from "./record.ts";

/** Follows the steps that copy. */
export const VERIFY_STEP = "verify";

/** How far a step is; `total` is about. */
export interface MoveProgress {
  readonly step: string;
  readonly done: number;
  readonly total: number;
}

export interface AttemptParts {
  readonly link: MoveLink;
  readonly lease: RecordWriter["lease"];
  /** See `MoveTarget`. */
  readonly until: MoveTarget["until"];
  readonly source: MoveSource;
  readonly record: MoveRecord;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** Throws when the attempt is to end. */
  readonly assertGoing: () => void;
  /** Resolves when what was written is where it is to be (replicas). */
  readonly written: () => Promise<void> | undefined;
  readonly onProgress: (progress: MoveProgress) => void;
}

/** Resolves when everything is in Redis and was compared. Throws BrokerError with a sentence. */
export async function attempt(allParts: AttemptParts): Promise<void> {
  const { link, source, until } = allParts;
  const target = moveTarget(link, until);
  const parts = { ...allParts, target };
  try {
    for (const step of MOVE_STEPS) await copyStep(parts, step);
    await raiseIds(target, source.lastMessageId);
    await verify(parts);
  } catch (error) {
    if (error instanceof MoveGap) await beginAgain(parts);
    throw error;
  }
  await parts.written();
  await saveRecord(parts, { isDone: true, lastErr: "" });
}

interface RunningParts extends AttemptParts {
  readonly target: MoveTarget;
}

function beginAgain(parts: AttemptParts): Promise<void> {
  return saveRecord(parts, { place: "beginning", rows: 0 });
}

async function copyStep(parts: RunningParts, step: MoveStep): Promise<void> {
  const { source, record, target } = parts;
  const place = record.place;
  if (place !== undefined && isBefore(step, place.step)) return;
  const isResumed = place?.step === step;
  let done = isResumed ? record.rows : 0;
  const total = source.total(step);
  parts.onProgress({ step, done, total });
  await saveRecord(parts, { step });
  let writing: Promise<void> = Promise.resolve();
  const copy = async (page: Page): Promise<void> => {
    await writeRows(target, contextOf(parts), page.map(movedOf));
    done += page.length;
    const last = page.at(-1)?.place;
    if (last !== undefined)
      await saveRecord(parts, { place: { ...last, step }, rows: done });
    parts.onProgress({ step, done, total });
  };
  // The next page is read while this one is on its way; it is not sent before this one is there.
  for (const page of pagesOf(
    source.rows(step, isResumed ? place : undefined),
  )) {
    await writing;
    parts.assertGoing();
    writing = copy(page);
    writing.catch(() => undefined); // awaited above or below
  }
  await writing;
}

async function verify(parts: RunningParts): Promise<void> {
  const { source, target } = parts;
  const counts = new MoveCounts(target);
  const totals = MOVE_STEPS.map((step) => source.total(step));
  const total = totals.reduce((sum, count) => sum + count, 0);
  await saveRecord(parts, { step: VERIFY_STEP });
  let done = 0;
  parts.onProgress({ step: VERIFY_STEP, done, total });
  for (const step of MOVE_STEPS)
    for (const page of pagesOf(source.rows(step))) {
      parts.assertGoing();
      const rows = page.map(movedOf);
      const [difference] = await Promise.all([
        differenceOf(target, contextOf(parts), rows),
        counts.take(rows),
      ]);
      await refuse(parts, difference);
      done += page.length;
      parts.onProgress({ step: VERIFY_STEP, done, total });
    }
  await refuse(parts, counts.difference());
}

async function refuse(
  parts: AttemptParts,
  difference: string | undefined,
): Promise<void> {
  if (difference === undefined) return;
  await beginAgain(parts);
  throw new BrokerError("internal", {
    message: `What was moved is not what is in the folder: ${difference}`,
  });
}

function contextOf({ link, record, clock, ...parts }: AttemptParts) {
  return {
    keys: link.keys,
    nowMs: clock(),
    beganAtMs: record.beganAtMs,
    dedupeWindowMs: parts.dedupeWindowS * 1000,
    retentionMs: parts.retentionS * 1000,
  };
}

const movedOf = ({ moved }: Page[number]) => moved;

function isBefore(step: MoveStep, other: MoveStep): boolean {
  return MOVE_STEPS.indexOf(step) < MOVE_STEPS.indexOf(other);
}
