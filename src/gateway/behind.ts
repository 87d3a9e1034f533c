// The events that a session has not been given, of one group or of all its personal channels: while it joins, until it is told where each
// stream stands, and while its socket lags. While it waits only what the store cannot give again is kept; while the store is read, everything.
// State: those events, and how far the client has each stream.

import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  type StreamSnapshot,
} from "../broker/model.ts";
import {
  cursorAfter,
  eventsFrom,
  restOf,
  type StreamCursor,
} from "../broker/stream-pieces.ts";
import {
  HELD_OVERHEAD_BYTES,
  type HeldPush,
  type Session,
  type StreamName,
  streamName,
  type Withholding,
} from "./session.ts";

/** Where events of one or several channels go to sessions, but to those behind. */
export interface EventPlace {
  /** The group's; undefined: all personal channels of the session. */
  readonly key: ChannelKey | undefined;
  behindOf(session: Session): Withholding | undefined;
  /** From now on the session's events are withheld in `behind`. */
  fallBehind(behind: Behind): void;
  /** Ends that, and gives the session what is published from now on. */
  goLive(behind: Behind): void;
}

interface Owed extends StreamName {
  /** The client has every event before it. */
  cursor: StreamCursor;
  /** Events were left out, or may have come before the first that is kept: the store has them. */
  mustRead: boolean;
  /** It was pushed whole when the client joined. */
  readonly isPresented?: boolean;
}

const BEGINNING: StreamCursor = { index: 0, textOffset: 0 };

/** All personal channels of a session; what withholds their events hangs on the session. */
export const PERSONAL_EVENTS: EventPlace = {
  key: undefined,
  behindOf: ({ personalEvents }) => personalEvents,
  fallBehind(behind) {
    behind.session.personalEvents = behind;
  },
  goLive({ session }) {
    session.personalEvents = undefined;
  },
};

export class Behind implements Withholding {
  readonly session: Session;
  readonly place: EventPlace;
  /** It knows no stream but those it was shown or that begin meanwhile; else it has all before the first withheld event. */
  readonly isJoining: boolean;
  readonly #owed = new Map<string, Owed>();
  readonly #events: ChannelEvent[] = [];
  #isReading = true;
  #bytes = 0;

  constructor(session: Session, place: EventPlace, isJoining: boolean) {
    this.session = session;
    this.place = place;
    this.isJoining = isJoining;
    const { key } = place;
    if (key === undefined) return;
    for (const [clientMsgNo, cursor] of session.takeOpened(key) ?? [])
      this.#owe({ key, clientMsgNo, cursor, mustRead: true });
  }

  /** Nothing is owed to the client, as far as is known here. */
  get isEmpty(): boolean {
    return this.#events.length === 0 && !this.mustRead;
  }

  /** It was ended, or left the channel, or something newer withholds its events. */
  get isOver(): boolean {
    const { session, place } = this;
    return session.ended !== undefined || place.behindOf(session) !== this;
  }

  /** What is withheld is not all there is to push. */
  get mustRead(): boolean {
    for (const { mustRead } of this.#owed.values()) if (mustRead) return true;
    return false;
  }

  /** From now on the content of streams is left to the store. */
  wait(): void {
    this.#isReading = false;
  }

  /** From now on everything is kept: the store is read once more. */
  read(): void {
    this.#isReading = true;
  }

  /** The streams that are to be read, in the order they are owed. */
  get unread(): readonly StreamName[] {
    return [...this.#owed.values()].filter(({ mustRead }) => mustRead);
  }

  withhold(event: ChannelEvent): void {
    const { stream, key, clientMsgNo } = event;
    if (this.session.ended !== undefined) return;
    if (stream === undefined) return this.#keep(event);
    const found = this.#owed.get(streamName(event));
    if (found !== undefined) {
      if (this.#isReading) return this.#keep(event);
      if (!found.mustRead) this.#keep(event); // marks the place among what is no stream's
      found.mustRead = true;
      return;
    }
    const isKnown = !this.isJoining || stream.index === 0;
    if (!isKnown && !this.#isReading) return; // active when it is read, or over before the client heard of it
    this.#keep(event);
    const { index, textOffset } = stream;
    const cursor = { index, textOffset };
    const mustRead = !this.#isReading;
    if (isKnown) this.#owe({ key, clientMsgNo, cursor, mustRead });
  }

  shown(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo, nextIndex } = snapshot;
    const found = this.#owed.get(streamName(snapshot));
    const cursor = endOf(snapshot);
    if (found === undefined) {
      if (snapshot.state !== "active") return;
      this.#owe({ key, clientMsgNo, cursor, mustRead: this.isJoining });
    } else if (found.cursor.index < nextIndex) found.cursor = cursor;
  }

  /** Pushes an active stream that the client has not heard of; what comes of it until `read` is left to the store. */
  present(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo } = snapshot;
    const cursor = this.#pushSnapshot(snapshot);
    this.#owe({ key, clientMsgNo, cursor, mustRead: true, isPresented: true });
  }

  /** Pushes what comes before the stream among what is withheld, and then the stream as it was read; undefined: it is gone. */
  advance(name: StreamName, snapshot: StreamSnapshot | undefined): void {
    const place = this.#events.findIndex(
      (event) =>
        event.stream !== undefined && streamName(event) === streamName(name),
    );
    const before = this.#events.splice(0, place + 1);
    for (const event of before) this.#pushWithheld(event); // the last one is of the stream, whose snapshot holds it
    if (snapshot !== undefined) this.#pushRest(snapshot);
  }

  /**
   * Pushes everything there is, given what was read after `read` and, where it joins, what is active. Then it may go live. Returns how many
   * streams were caught up with from the store.
   */
  settle(
    active: readonly StreamSnapshot[],
    read: readonly StreamSnapshot[],
  ): number {
    const rest = new Map(read.map((one) => [streamName(one), one]));
    for (const snapshot of active) {
      const { key, clientMsgNo } = snapshot;
      if (this.#owed.get(streamName(snapshot))?.isPresented) continue;
      rest.delete(streamName(snapshot));
      const cursor = this.#pushSnapshot(snapshot);
      this.#owe({ key, clientMsgNo, cursor, mustRead: false });
    }
    const caughtUp = rest.size;
    const ofStreams = this.#events.filter(({ stream }) => stream !== undefined);
    const placed = new Set(ofStreams.map(streamName));
    const takeUp = (name: string): void => {
      const snapshot = rest.get(name);
      if (snapshot !== undefined) this.#pushRest(snapshot);
      rest.delete(name);
    };
    for (const name of [...rest.keys()]) if (!placed.has(name)) takeUp(name);
    for (const event of this.#events) {
      if (event.stream !== undefined) takeUp(streamName(event));
      this.#pushWithheld(event);
    }
    if (this.place.key === undefined) this.#noteRead();
    this.drop();
    return caughtUp;
  }

  /** Forgets everything. */
  drop(): void {
    this.session.charge(-this.#bytes);
    this.#bytes = 0;
    this.#events.length = 0;
    this.#owed.clear();
  }

  /** On several servers an event of a personal channel may be read before it is published. */
  #noteRead(): void {
    for (const { key, clientMsgNo, cursor } of this.#owed.values())
      this.session.noteReadStream({ key, clientMsgNo }, cursor);
  }

  /** Unless the client has it, or the stream is one it was never told of, or one that the store has lost. */
  #pushWithheld(event: ChannelEvent): void {
    const { stream } = event;
    if (stream === undefined) return this.#pushEvent(event);
    const owed = this.#owed.get(streamName(event));
    if (owed === undefined || owed.mustRead) return;
    const rest = restOf(event, stream, owed.cursor);
    if (rest === undefined) return;
    owed.cursor = cursorAfter(event, stream);
    this.#pushEvent(rest);
  }

  /** Unless an answer that was read later has told more. Returns how far the client is. */
  #pushSnapshot(snapshot: StreamSnapshot): StreamCursor {
    const shown = this.#owed.get(streamName(snapshot))?.cursor ?? BEGINNING;
    if (shown.index > snapshot.nextIndex) return shown;
    const channel = channelSeenBy(this.session.uid, snapshot);
    this.#push({ kind: "stream", channel, snapshot });
    return endOf(snapshot);
  }

  #pushRest(snapshot: StreamSnapshot): void {
    const owed = this.#owed.get(streamName(snapshot));
    if (owed === undefined) return;
    for (const event of eventsFrom(snapshot, owed.cursor))
      this.#pushEvent(event);
    owed.mustRead = false;
    if (owed.cursor.index < snapshot.nextIndex) owed.cursor = endOf(snapshot);
  }

  #pushEvent(event: ChannelEvent): void {
    const channel = channelSeenBy(this.session.uid, event);
    this.#push({ kind: "event", channel, event });
  }

  /** Messages of personal channels may be held just now. */
  #push(push: HeldPush): void {
    if (this.place.key === undefined) this.session.pushInTurn(push);
    else this.session.push(push);
  }

  #owe(owed: Owed): void {
    this.#owed.set(streamName(owed), owed);
  }

  #keep(event: ChannelEvent): void {
    const bytes = event.data.length + HELD_OVERHEAD_BYTES;
    this.#events.push(event);
    this.#bytes += bytes;
    this.session.charge(bytes);
  }
}

function endOf({ nextIndex, text }: StreamSnapshot): StreamCursor {
  return { index: nextIndex, textOffset: text.length };
}
