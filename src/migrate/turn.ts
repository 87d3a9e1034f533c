// One process's turn at a move: it has the right to it, opens the folder, makes Redis its target, and does what is left to do. State: none but Redis'.

import type { RedisLink } from "../redis/link.ts";
import { ReplicationBarrier } from "../redis/replication.ts";
import type { MoveSource } from "../store/moved.ts";
import { type AttemptParts, attempt } from "./attempt.ts";
import { Lease } from "./lease.ts";
import { readRecord, saveRecord } from "./record.ts";
import { type Claim, claimTarget } from "./target.ts";

export interface TurnParts
  extends Pick<
      AttemptParts,
      "clock" | "dedupeWindowS" | "retentionS" | "onProgress" | "onCompared"
    >,
    Pick<Claim, "deadAfterMs" | "pause"> {
  readonly link: RedisLink;
  /** Opens what is to be moved. Throws BrokerError with a sentence. */
  readonly open: () => Promise<MoveSource>;
  /** The turn is taken; answers how many there were with it. */
  readonly begun: () => number;
  /** Throws when the process is to end. */
  readonly assertOpen: () => void;
}

/** True: everything is in Redis, by this turn. False: by another process, or one is at it. Throws BrokerError with a sentence; the next turn goes on from there. */
export async function takeTurn(parts: TurnParts): Promise<boolean> {
  const lease = new Lease(parts.link);
  if (!(await lease.take())) return false;
  try {
    const tries = parts.begun();
    const source = await parts.open();
    try {
      await lease.renew(); // opening may have held the event loop up
      return await move(parts, { source, lease, tries });
    } catch (error) {
      await noteFailure({ link: parts.link, lease }, source.id, error);
      throw error;
    } finally {
      await source.close();
    }
  } finally {
    await lease.release();
  }
}

async function move(
  parts: TurnParts,
  {
    source,
    lease,
    tries,
  }: {
    readonly source: MoveSource;
    readonly lease: Lease;
    readonly tries: number;
  },
): Promise<boolean> {
  const { link, clock, deadAfterMs, pause } = parts;
  const claim = {
    ...{ link, lease, source: source.id, nowMs: clock(), deadAfterMs, pause },
  };
  const record = await claimTarget(claim);
  if (record.isDone) return false; // by another one, just now
  await saveRecord({ link, lease }, { tries, lastErr: "" });
  const barrier = new ReplicationBarrier(link);
  try {
    await attempt({
      ...{ ...parts, source, record, lease },
      until: (key) => lease.untilOf(key),
      written: () => barrier.wait(),
      assertGoing: () => {
        parts.assertOpen();
        lease.assertHeld();
      },
    });
    return true;
  } finally {
    barrier.close();
  }
}

/** For those who wait for this move. Nothing is noted of a Redis that is another's, or one that went away, which the error tells itself. */
async function noteFailure(
  writer: { readonly link: RedisLink; readonly lease: Lease },
  source: string,
  error: unknown,
): Promise<void> {
  const { link } = writer;
  if (!link.isUp) return;
  const lastErr = error instanceof Error ? error.message : String(error);
  try {
    const record = await readRecord(link);
    if (record?.source === source) await saveRecord(writer, { lastErr });
  } catch {
    return; // it went away just now
  }
}
