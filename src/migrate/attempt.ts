// One attempt at a move: the rows of each step are copied page by page, each page's place is kept in Redis behind it, then everything is compared.
// Whatever ends it, the next attempt goes on from the last place; where Redis lost something, from the beginning.
// State: none but Redis'.

import { BrokerError } from "../broker/errors.ts";
import { MOVE_STEPS, type MoveStep } from "../store/moved.ts";
import {
  MoveGap,
  type MoveLink,
  type MoveTarget,
  moveTarget,
  raiseIds,
  writeRows,
} from "../store/redis/import/import.ts";
import { type Compared, type CompareParts, compare } from "./compare.ts";
import { type Page, pagesOf } from "./pages.ts";
import { type MoveRecord, type RecordWriter, saveRecord } from "./record.ts";

/** Redis differs from the folder in what it differed in before everything was moved once more: no further try can help. */
export class MoveStuck extends BrokerError {
  /** Of the record of the move. */
  readonly beganAtMs: number;

  constructor(differing: string, { beganAtMs }: MoveRecord) {
    super("internal", {
      message: `What is in Redis is not what is in the folder, and moving everything again did not change that. Empty redis.prefix and begin again. It is: ${differing}`,
    });
    this.name = "MoveStuck";
    this.beganAtMs = beganAtMs;
  }
}

export interface AttemptParts
  extends Pick<CompareParts, "source" | "assertGoing" | "onProgress"> {
  readonly link: MoveLink;
  readonly lease: RecordWriter["lease"];
  /** See `MoveTarget`. */
  readonly until: MoveTarget["until"];
  readonly record: MoveRecord;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly dedupeWindowS: number;
  readonly retentionS: number;
  /** Resolves when what was written is where it is to be (replicas). */
  readonly written: () => Promise<void> | undefined;
  /** Everything is there: how much of what. */
  readonly onCompared: (counts: Compared["counts"]) => void;
}

/** Resolves when everything is in Redis and was compared. Throws BrokerError with a sentence, of no further use MoveStuck. */
export async function attempt(allParts: AttemptParts): Promise<void> {
  const { link, source, until } = allParts;
  const target = moveTarget(link, until);
  const context = contextOf(allParts);
  const parts = { ...allParts, target, context };
  try {
    for (const step of MOVE_STEPS) await copyStep(parts, step);
    await raiseIds(target, source.lastMessageId);
    const compared = await compare(parts);
    if (compared.differing !== "") await refuse(parts, compared);
    await parts.written();
    await saveRecord(parts, { isDone: true, lastErr: "", differing: "" });
    parts.onCompared(compared.counts);
  } catch (error) {
    if (error instanceof MoveGap) await beginAgain(parts);
    throw error;
  }
}

type RunningParts = AttemptParts & Pick<CompareParts, "target" | "context">;

function beginAgain(parts: AttemptParts, differing?: string): Promise<void> {
  const found = differing === undefined ? {} : { differing };
  return saveRecord(parts, { place: "beginning", rows: 0, ...found });
}

async function refuse(
  parts: AttemptParts,
  { differing }: Compared,
): Promise<never> {
  const { record } = parts;
  await beginAgain(parts, differing);
  if (record.differing === differing) throw new MoveStuck(differing, record);
  throw new BrokerError("internal", {
    message: `What is in Redis is not what is in the folder; the next try moves everything again. It is: ${differing}`,
  });
}

async function copyStep(parts: RunningParts, step: MoveStep): Promise<void> {
  const { source, record, target } = parts;
  const place = record.place;
  if (place !== undefined && isBefore(step, place.step)) return;
  const isResumed = place?.step === step;
  let done = isResumed ? record.rows : 0;
  const total = source.total(step);
  parts.onProgress({ step, done, total });
  await saveRecord(parts, { step, rows: done, total });
  let writing: Promise<void> = Promise.resolve();
  const copy = async (page: Page): Promise<void> => {
    await writeRows(target, parts.context(), page.map(movedOf));
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

function contextOf(allParts: AttemptParts): CompareParts["context"] {
  const { link, record, clock, ...parts } = allParts;
  return () => ({
    keys: link.keys,
    nowMs: clock(),
    beganAtMs: record.beganAtMs,
    dedupeWindowMs: parts.dedupeWindowS * 1000,
    retentionMs: parts.retentionS * 1000,
  });
}

const movedOf = ({ moved }: Page[number]) => moved;

function isBefore(step: MoveStep, other: MoveStep): boolean {
  return MOVE_STEPS.indexOf(step) < MOVE_STEPS.indexOf(other);
}
