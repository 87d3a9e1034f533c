// Finds streams that ended at or after a given time, in memory and in the database. A scope is a
// group, or all personal channels of one user. State: the newest end in each recently used scope,
// which saves one lookup per group when a user with many groups connects.

import type { ChannelKey } from "../../../broker/model.ts";
import type { StreamEnd } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { newestEnds } from "../../newest-ends.ts";
import type { LiveStream } from "./live-stream.ts";
import type { LiveStreams } from "./live-streams.ts";
import { type StreamRows, scopesOf, userScope } from "./stream-rows.ts";

/** Maximum number of scopes whose newest end is cached. An entry takes about 0.1 KiB. */
const MAX_KEPT = 200_000;

interface Scope {
  readonly name: string;
  readonly live: Iterable<LiveStream>;
}

export class StreamEnds {
  readonly #live: Pick<LiveStreams, "of" | "personalOf">;
  readonly #rows: Pick<StreamRows, "ends">;
  /**
   * Newest end of each scope in Unix milliseconds, or `-Infinity` if no stream of the scope has
   * ended. The `-Infinity` entry avoids repeated reads of a scope without ends.
   */
  readonly #newestMs = new BoundedMap<string, number>(MAX_KEPT);

  constructor(live: Pick<LiveStreams, "of" | "personalOf">, rows: Pick<StreamRows, "ends">) {
    this.#live = live;
    this.#rows = rows;
  }

  /** Records the end of a stream. Must be called when the end becomes visible. */
  add({ head, endedMs }: LiveStream): void {
    for (const scope of scopesOf(head.key)) {
      const newestMs = this.#newestMs.get(scope);
      if (newestMs !== undefined) this.#newestMs.set(scope, Math.max(newestMs, endedMs));
    }
  }

  async ofChannels(
    keys: readonly ChannelKey[],
    sinceMs: number,
    limit: number,
  ): Promise<readonly StreamEnd[]> {
    const slice = new TimeSlice();
    const scopes: (Scope & { readonly newestMs: number })[] = [];
    for (const key of keys) {
      if (slice.shouldYield()) await slice.yield();
      const scope = { name: key, live: this.#live.of(key) };
      const newestMs = this.#newestOf(scope);
      if (newestMs >= sinceMs) scopes.push({ ...scope, newestMs });
    }
    return newestEnds(scopes, { sinceMs, limit }, (next, since) =>
      next.flatMap((scope) => this.#endsIn(scope, since, limit)),
    );
  }

  ofUser(uid: string, sinceMs: number, limit: number): readonly StreamEnd[] {
    const scope = { name: userScope(uid), live: this.#live.personalOf(uid) };
    if (this.#newestOf(scope) < sinceMs) return [];
    const ends = this.#endsIn(scope, sinceMs, limit);
    return ends.toSorted((a, b) => b.endedMs - a.endedMs).slice(0, limit);
  }

  #newestOf(scope: Scope): number {
    const cachedMs = this.#newestMs.get(scope.name);
    if (cachedMs !== undefined) return cachedMs;
    const newestMs = Math.max(...this.#endsIn(scope, 0, 1).map(({ endedMs }) => endedMs));
    this.#newestMs.set(scope.name, newestMs);
    return newestMs;
  }

  /**
   * Returns the ends of a scope. An end that is both in memory and in the database is returned only
   * once.
   */
  #endsIn({ name, live }: Scope, sinceMs: number, limit: number): readonly StreamEnd[] {
    const ends: StreamEnd[] = [];
    for (const { head, endedMs, isShownEnded } of live) {
      const { key, clientMsgNo, messageSeq } = head;
      if (isShownEnded && endedMs >= sinceMs) ends.push({ key, clientMsgNo, messageSeq, endedMs });
    }
    const inMemory = new Set(ends.map(({ key, messageSeq }) => `${key} ${messageSeq}`));
    for (const end of this.#rows.ends(name, sinceMs, limit))
      if (!inMemory.has(`${end.key} ${end.messageSeq}`)) ends.push(end);
    return ends;
  }
}
