// One process's part in a move over one connection: it looks how the move stands, makes it when it may, and waits while another one does. State: none.

import type { RedisLink } from "../redis/link.ts";
import type { MoveSource, SourceLook } from "../store/moved.ts";
import { type MoveRecord, readMove } from "./record.ts";
import type { Standing } from "./standing.ts";
import { mixes } from "./target.ts";
import { type TurnParts, takeTurn } from "./turn.ts";
import { type OtherMove, Waiting, type WaitingParts } from "./waiting.ts";

interface MoveFolder {
  /** Throws BrokerError with a sentence. */
  open(): Promise<MoveSource>;
  /** At what `open` would open, without opening it; undefined: there is no data. */
  look(): Promise<SourceLook | undefined>;
}

export interface FollowParts
  extends Omit<TurnParts, "link" | "open" | "begun">,
    WaitingParts {
  /** What is to be moved; undefined: this process only waits for another's move. */
  readonly folder: MoveFolder | undefined;
  readonly standing: Standing;
  /** Another process moves, or did: told with each look. */
  readonly onWaiting: (other: OtherMove) => void;
}

const POLL_MS = 250;
const MAX_POLL_MS = 1000;

/** Resolves when the data is there, or there is nothing to wait for. Throws BrokerError with a sentence. */
export async function follow(
  parts: FollowParts,
  link: RedisLink,
): Promise<void> {
  const { standing } = parts;
  const waiting = new Waiting(parts);
  for (let pollMs = POLL_MS; ; pollMs = Math.min(pollMs * 2, MAX_POLL_MS)) {
    parts.assertOpen();
    const now = await readMove(link);
    const { record } = now;
    standing.counted(record);
    if (await isOver(parts, link, record)) return;
    const other = waiting.look(now);
    if (!other.isMoving && (await moves(parts, link, record))) return;
    wait(parts, record, other);
    await parts.pause(pollMs);
  }
}

/** Whether what was moved is what this process is to move, as far as that can be told: the folder may be gone or on another machine. */
export async function isOurs(
  { folder }: Pick<FollowParts, "folder">,
  { source }: MoveRecord,
): Promise<boolean> {
  const look = await folder?.look();
  return look === undefined || look.id === source;
}

/** By another process or an earlier start. */
async function isOver(
  parts: FollowParts,
  link: RedisLink,
  record: MoveRecord | undefined,
): Promise<boolean> {
  const { folder, standing } = parts;
  const isAll = record?.isDone ?? (folder === undefined && !standing.isAwaited);
  if (!isAll) return false;
  if (record !== undefined && !(await isOurs(parts, record))) throw mixes(link);
  standing.migrated(record);
  return true;
}

/** True: this process has moved all of it. False: another one is at it, or nothing can be done here. */
async function moves(
  parts: FollowParts,
  link: RedisLink,
  record: MoveRecord | undefined,
): Promise<boolean> {
  const { folder, standing } = parts;
  if (folder === undefined || standing.stuckAt(record) !== undefined)
    return false;
  const hasMoved = await takeTurn({
    ...{ ...parts, link },
    open: () => folder.open(),
    begun() {
      const { lastErr } = standing.state;
      const tries = standing.tried();
      standing.running(undefined, lastErr);
      return tries;
    },
    onProgress(progress) {
      standing.at(progress.step);
      parts.onProgress(progress);
    },
  });
  if (hasMoved) standing.completed();
  return hasMoved;
}

function wait(
  { folder, standing, onWaiting }: FollowParts,
  record: MoveRecord | undefined,
  other: OtherMove,
): void {
  const stuck = other.isMoving ? undefined : standing.stuckAt(record);
  const lastErr = stuck ?? other.lastErr;
  if (record !== undefined || folder === undefined)
    standing.told(record, lastErr);
  if (stuck === undefined || other.isAbandoned)
    onWaiting({ ...other, lastErr }); // what this process found itself was said
}
