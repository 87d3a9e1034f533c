// What a checkpoint takes out of memory: marked when it begins, let go of when the database has it. No state; the marks are in what is marked.

import type { LiveStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { Surplus } from "./surplus.ts";
import type { Tail, TailChannel, TailRecord } from "./tail.ts";

export interface Memory {
  readonly tail: Tail;
  readonly live: LiveStreams;
  /** Hears which channels grew in the database. */
  readonly surplus: Pick<Surplus, "grew">;
}

export interface Frozen {
  readonly channels: TailChannel[];
  readonly streams: readonly LiveStream[];
}

/** Marks everything settled. After a failure it is simply called again. */
export function freeze(
  { tail, live }: Pick<Memory, "tail" | "live">,
  unsettled: Iterable<TailRecord>,
): Frozen {
  return { channels: tail.freeze(unsettled), streams: live.freeze() };
}

/** Lets go of what is marked. */
export function thaw(
  { tail, live, surplus }: Memory,
  { channels, streams }: Frozen,
): void {
  for (const channel of channels) surplus.grew(channel);
  tail.thaw(channels);
  live.thaw(streams);
}
