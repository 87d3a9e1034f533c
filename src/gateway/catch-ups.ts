// Catches sessions that join, or that lagged, up with the events of their channels: no gap, no repeat, merged where much was
// missed. Reads streams from the store at the pace the client takes them. State: which session is catching up just now.

import { BrokerError } from "../broker/errors.ts";
import type { StreamSnapshot } from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";
import type { SessionDirectory } from "../broker/session-directory.ts";
import type { StreamStore } from "../broker/stream-ports.ts";
import { KeyedLock } from "../lib/keyed-lock.ts";
import type { TimeSlice } from "../lib/time-slice.ts";
import { Behind, type EventPlace, PERSONAL_EVENTS } from "./behind.ts";
import { concernOfAll, readJudged } from "./read-judged.ts";
import type { Session, StreamName } from "./session.ts";

export interface CatchUpParts {
  readonly store: Pick<
    StreamStore,
    "stream" | "activeStream" | "personalStreamsOf"
  >;
  readonly cluster: Pick<Cluster, "barrier" | "recovery" | "delivered">;
  readonly directory: Pick<SessionDirectory, "endedBy">;
  /** Of a connection. */
  readonly maxBufferedBytes: number;
  readonly metrics: {
    /** So many streams were taken up from the store. */
    caughtUp(streams: number): void;
    levelling(by: number): void;
  };
  /** In which those who join wait to look for active streams: thousands may join thousands of groups at once. */
  inTurn<T>(look: () => Promise<T>): Promise<T>;
  /** A bug surfaced; `what` says where. */
  onBug(error: unknown, what: string): void;
}

/** Of the bytes that cut a connection off when they wait unread, the part from which on it lags. */
const LAG_SHARE = 0.25;

/** From so many unread bytes on a connection lags: what of streams it has not been sent comes merged later. */
export function lagBytesOf(maxBufferedBytes: number): number {
  return maxBufferedBytes * LAG_SHARE;
}

export class CatchUps {
  readonly #parts: CatchUpParts;
  /** By session: catching up in several channels at once would push all at once. */
  readonly #lock = new KeyedLock();
  /** A session catches up when no more than this is unread by its client. */
  readonly #maxUnreadBytes: number;

  constructor(parts: CatchUpParts) {
    this.#parts = parts;
    this.#maxUnreadBytes = lagBytesOf(parts.maxBufferedBytes) / 2;
  }

  /** From now on events of the session's personal channels are withheld, until `joinPersonal`, which may be long: streams are left to the store. */
  enter(session: Session): void {
    const behind = new Behind(session, PERSONAL_EVENTS, true);
    behind.wait();
    PERSONAL_EVENTS.fallBehind(behind);
  }

  /** The session is level with the messages of its personal channels. */
  joinPersonal(session: Session): void {
    const behind = session.personalEvents;
    if (behind instanceof Behind) this.join(behind);
  }

  /** `behind` withholds since the session joined the place, and everything published there reaches this node. */
  join(behind: Behind): void {
    const { metrics } = this.#parts;
    metrics.levelling(1);
    void this.#guarded(behind.session, () => this.#join(behind)).then(() =>
      metrics.levelling(-1),
    );
  }

  /** From now on the session's events of these groups and its personal channels are withheld, until it has drained and caught up. */
  lag(session: Session, groups: Iterator<EventPlace>, slice: TimeSlice): void {
    void this.#guarded(session, async () => {
      const fallen: Behind[] = [];
      const fall = (place: EventPlace) => {
        if (place.behindOf(session) !== undefined) return;
        const behind = new Behind(session, place, false);
        behind.wait();
        place.fallBehind(behind);
        fallen.push(behind);
      };
      fall(PERSONAL_EVENTS);
      for (;;) {
        if (slice.isUsedUp()) await slice.rest();
        if (session.ended !== undefined) return; // its groups forget it as it leaves them
        const next = groups.next(); // after the rest: the session may have left a group meanwhile
        if (next.done) break;
        fall(next.value);
      }
      await this.#recover(session, fallen, slice);
    });
  }

  /** At once where nothing is owed, as in nearly every channel. */
  async #join(behind: Behind): Promise<void> {
    const { session } = behind;
    behind.read();
    const active = await this.#parts.inTurn(() => this.#active(behind));
    const owesNothing = active.length === 0 && !behind.mustRead;
    if (owesNothing && !this.#lags(session)) {
      await this.#parts.cluster.barrier();
      finish(behind);
      return;
    }
    behind.wait();
    await this.#lock.run(session.sessionId, async () => {
      await session.writable(this.#maxUnreadBytes);
      await this.#catchUp(behind);
    });
  }

  async #recover(
    session: Session,
    fallen: readonly Behind[],
    slice: TimeSlice,
  ): Promise<void> {
    await this.#lock.run(session.sessionId, async () => {
      for (const behind of fallen) {
        if (slice.isUsedUp()) await slice.rest();
        if (this.#lags(session)) await session.writable(this.#maxUnreadBytes);
        if (behind.isEmpty) finish(behind);
        else await this.#catchUp(behind);
      }
    });
  }

  /** All but the last of many streams one by one, so that the client takes each before the next. */
  async #catchUp(behind: Behind): Promise<void> {
    if (behind.isJoining) await this.#present(behind);
    for (const name of behind.unread.slice(0, -1)) {
      const snapshot = await this.#settled(name);
      if (behind.isOver) return;
      behind.advance(name, snapshot);
      this.#parts.metrics.caughtUp(1);
      await behind.session.writable(this.#maxUnreadBytes);
    }
    if (!behind.isOver) await this.#meet(behind);
  }

  /** Of personal channels many may be active. */
  async #present(behind: Behind): Promise<void> {
    for (const name of (await this.#active(behind)).slice(1)) {
      const snapshot = await this.#settled(name);
      if (behind.isOver) return;
      if (snapshot?.state === "active") behind.present(snapshot);
      await behind.session.writable(this.#maxUnreadBytes);
    }
  }

  /** The last snapshots are read while everything is kept, so they and what is kept meet. */
  async #meet(behind: Behind): Promise<void> {
    behind.read();
    const active = behind.isJoining ? await this.#active(behind) : [];
    const read = await Promise.all(
      behind.unread.map((name) => this.#stream(name)),
    );
    await this.#parts.cluster.barrier(); // what the snapshots hold has come, and is left out
    const found = read.filter((one) => one !== undefined);
    const streams = finish(behind, active, found);
    if (streams > 0) this.#parts.metrics.caughtUp(streams);
  }

  /** Removals before the read are delivered: a session whose user was removed has left. */
  async #settled(name: StreamName): Promise<StreamSnapshot | undefined> {
    const found = await this.#stream(name);
    await this.#parts.cluster.barrier();
    return found;
  }

  async #stream({
    key,
    clientMsgNo,
  }: StreamName): Promise<StreamSnapshot | undefined> {
    const { store, cluster } = this.#parts;
    return readJudged(cluster, concernOfAll(key), () =>
      store.stream(key, clientMsgNo),
    );
  }

  #lags({ connection }: Session): boolean {
    return connection.bufferedBytes() > this.#maxUnreadBytes;
  }

  async #active({
    place,
    session,
  }: Behind): Promise<readonly StreamSnapshot[]> {
    const { store } = this.#parts;
    if (place.key === undefined) return store.personalStreamsOf(session.uid);
    const found = await store.activeStream(place.key);
    return found === undefined ? [] : [found];
  }

  /** A session that cannot be caught up with comes back and resumes. */
  async #guarded(session: Session, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (!(error instanceof BrokerError))
        this.#parts.onBug(error, "A session could not catch up");
      const ended = await this.#parts.directory.endedBy(session);
      session.end(ended ?? "unavailable");
    }
  }
}

/** Pushes what was withheld and goes live in the same breath. Returns how many streams were taken up from the store. */
function finish(
  behind: Behind,
  active: readonly StreamSnapshot[] = [],
  read: readonly StreamSnapshot[] = [],
): number {
  if (behind.isOver) return 0;
  const streams = behind.settle(active, read);
  behind.place.goLive(behind);
  return streams;
}
