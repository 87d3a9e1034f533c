// The backlog of one session in one scope: a group, or all of its user's personal channels. A
// session is live in a scope if messages and events are pushed to it as they arrive. Until the
// session is live, its backlog holds the arriving items or leaves them to be read from the store
// later, and records what was pushed to the session.

import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  GROUP_CHANNEL,
  type Message,
  type StreamSnapshot,
} from "../broker/model.ts";
import { MAX_STREAM_ENDS } from "../broker/ports.ts";
import {
  cursorAfter,
  cursorAtEnd,
  eventsFrom,
  restOf,
  type StreamCursor,
} from "../broker/stream-pieces.ts";
import {
  HELD_OVERHEAD_BYTES,
  type PersonalBacklog,
  type Session,
  type StreamName,
  streamName,
} from "./session.ts";

/**
 * State of a session that is not live in a scope. The state that is farthest from live is listed
 * first. A live session has no backlog. Held items are pushed when the session goes live for
 * messages, and withheld events are pushed when it goes live for events. "Left to the store" means
 * that an item is not kept here but read from the store later, so a message that is not stored is
 * lost. "Pushed or dropped" means that an item is pushed at once if the CONNACK was sent, and
 * dropped otherwise.
 *
 *   status     messages             events of a stream   other events
 *   expected   dropped              left to the store    dropped
 *   early      pushed or dropped    left to the store    pushed or dropped
 *   reading    left to the store    left to the store    dropped
 *   holding    held                 withheld             held
 *   streams    live                 withheld             withheld
 */
type BacklogStatus = "expected" | "early" | "reading" | "holding" | "streams";

/**
 * One group, or all of a user's personal channels. A session becomes live in a whole scope at once.
 */
export interface Scope {
  /** The group's key, or `undefined` for personal channels. */
  readonly key: ChannelKey | undefined;
  /**
   * Returns the session's backlog in the scope, or `undefined` if the session is live in the scope
   * or does not belong to the scope.
   */
  backlogOf(session: Session): Backlog | undefined;
  /**
   * Pushes the held items and makes the session live for messages. The session's events stay
   * withheld.
   */
  add(backlog: Backlog): void;
  withholdEvents(backlog: Backlog): void;
  goLive(backlog: Backlog): void;
}

interface PendingStream extends StreamName {
  cursor: StreamCursor;
  /**
   * True if the stream must be read from the store, because some of its events were not kept or may
   * have been missed.
   */
  mustRead: boolean;
  /**
   * `nextIndex` of the newest event that was left to the store. Absent if no event was left to it.
   */
  leftIndex?: number;
  /** True if `pushActiveStream` pushed the stream. */
  readonly isPushed?: boolean;
  /**
   * True if the client may have been sent events after `cursor`. Possible only if the session lags
   * and no event of the stream has been withheld yet.
   */
  mayHaveMore?: boolean;
  /** True if the stream has ended and it is unknown which part of it the client has. */
  readonly isMissedEnd?: boolean;
}

const BEGINNING: StreamCursor = { index: 0, textOffset: 0 };
const NO_STREAMS: ReadonlyMap<string, PendingStream> = new Map();

export const PERSONAL_CHANNELS: Scope = {
  key: undefined,
  backlogOf: ({ personal }) => (personal instanceof Backlog ? personal : undefined),
  add: (backlog) => backlog.release(),
  withholdEvents(backlog) {
    backlog.session.personal = backlog;
  },
  goLive({ session }) {
    session.personal = undefined;
  },
};

export class Backlog implements PersonalBacklog {
  readonly session: Session;
  readonly scope: Scope;
  /**
   * True if the session is new in the scope. False if it was live before and lags. The client of a
   * lagging session has been sent all events that arrived before the backlog was created.
   */
  readonly isJoining: boolean;
  status: BacklogStatus;
  /**
   * True if the session starts at its client's position instead of at the beginning of its user's
   * membership.
   */
  isResumed = false;
  /**
   * True if the client may have parts of streams from before this connect, and may therefore lack
   * the ends of these streams.
   */
  mayMissEnds: boolean;
  /** The group's newest seq when the client's position was compared with the store. */
  #headSeq = 0;
  /** Newest seq and highest message id that the session has in each channel. */
  #positions: Map<ChannelKey, { readonly seq: number; readonly id: number }> | undefined;
  #pendingStreams: Map<string, PendingStream> | undefined;
  /** Messages, and events outside streams, in order of arrival. */
  #heldItems: (Message | ChannelEvent)[] | undefined;
  #events: ChannelEvent[] | undefined;
  /**
   * True if every event must be kept, because an event may arrive after the last read of the store.
   */
  #keepsAllEvents = false;
  /** True if a stream event was left to the store. */
  #hasLeftEvents = false;
  #bytes = 0;
  #missedEndCount = 0;

  constructor(session: Session, scope: Scope, status: BacklogStatus) {
    this.session = session;
    this.scope = scope;
    this.status = status;
    this.isJoining = status !== "streams";
    this.mayMissEnds = this.isJoining && session.mayMissEnds;
  }

  get isEmpty(): boolean {
    return (this.#events?.length ?? 0) === 0 && !this.mustRead;
  }

  /** True if the session has ended, has left the scope, has gone live, or has a newer backlog. */
  get isOver(): boolean {
    const { session, scope } = this;
    return session.ended !== undefined || scope.backlogOf(session) !== this;
  }

  get mustRead(): boolean {
    if (this.#hasLeftEvents) return true;
    if (this.#pendingStreams === undefined) return false;
    for (const { mustRead } of this.#pendingStreams.values()) if (mustRead) return true;
    return false;
  }

  get isHolding(): boolean {
    return this.status === "holding";
  }

  get #streams(): ReadonlyMap<string, PendingStream> {
    return this.#pendingStreams ?? NO_STREAMS;
  }

  get hasBegun(): boolean {
    return this.#positions !== undefined;
  }

  /**
   * Makes the session start at its client's position in a group. `headSeq` is the group's newest
   * stored seq.
   */
  resume(headSeq: number): void {
    this.isResumed = true;
    this.#headSeq = headSeq;
  }

  /**
   * Returns true if the group has messages after the session's position. These messages must then
   * be read from the store.
   */
  lacksMessages(key: ChannelKey, deliveredSeq: number): boolean {
    return Math.max(this.#headSeq, deliveredSeq) > this.seqOf(key);
  }

  seqOf(key: ChannelKey): number {
    return this.#positions?.get(key)?.seq ?? 0;
  }

  /**
   * Sets the session's position in a channel. `id` is the id of the newest pushed message, or 0 to
   * keep the recorded id.
   */
  advance(key: ChannelKey, seq: number, id = 0): void {
    this.#positions ??= new Map();
    const previousId = this.#positions.get(key)?.id ?? 0;
    this.#positions.set(key, { seq, id: Math.max(previousId, id) });
  }

  /**
   * Pushes, holds or drops a message, depending on the status. Returns the number of pushed
   * messages, 0 or 1.
   */
  receiveMessage(message: Message): number {
    if (this.status === "holding") this.#holdItem(message);
    if (this.status !== "early" || !this.session.hasConnack) return 0;
    this.#pushMessage(message);
    return 1;
  }

  receiveEvent(event: ChannelEvent): void {
    const { status, session } = this;
    if (session.ended !== undefined) return;
    if (this.mayMissEnds && isEnd(event) && !this.#streams.has(streamName(event)))
      this.addMissedEnd(event);
    if (status === "holding" || status === "streams") {
      if (status === "holding" && event.stream === undefined) this.#holdItem(event);
      else this.#withhold(event);
    } else if (event.stream !== undefined) this.#hasLeftEvents = true;
    else if (status === "early" && session.hasConnack) this.#pushEvent(event);
  }

  hold(): void {
    this.status = "holding";
  }

  /**
   * Leaves a group's stored messages to the store from now on. Also drops the stored messages that
   * are held, because they are read from the store again. Has no effect in personal channels.
   */
  leaveToStore(): void {
    if (this.scope.key === undefined) return;
    this.status = "reading";
    this.#dropHeld((item) => isMessage(item) && item.messageSeq > 0);
  }

  forgetGroup(channelId: string): void {
    this.#dropHeld(({ channel: { id, type } }) => type === GROUP_CHANNEL && id === channelId);
  }

  release(): void {
    const items = this.#heldItems ?? [];
    this.#dropHeld(() => true);
    this.status = "streams";
    if (this.session.ended !== undefined) return;
    for (const item of items)
      if (!isMessage(item)) this.#pushEvent(item);
      else if (!this.#isDelivered(item)) this.#pushMessage(item);
  }

  leaveStreamsToStore(): void {
    this.#keepsAllEvents = false;
  }

  keepAll(): void {
    this.#keepsAllEvents = true;
  }

  get unread(): readonly StreamName[] {
    return [...this.#streams.values()].filter(({ mustRead }) => mustRead);
  }

  /** Records that the client received a stream's state in a message or a reply. */
  recordSnapshot(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo, nextIndex } = snapshot;
    const pending = this.#streams.get(streamName(snapshot));
    const cursor = cursorAtEnd(snapshot);
    if (pending === undefined) {
      if (snapshot.state !== "active") return;
      const { isJoining } = this;
      const mayHaveMore = !isJoining;
      this.#addPending({ key, clientMsgNo, cursor, mustRead: isJoining, mayHaveMore });
    } else if (pending.cursor.index < nextIndex) pending.cursor = cursor;
  }

  get missedEnds(): readonly StreamName[] {
    return [...this.#streams.values()].filter((pending) => pending.isMissedEnd && pending.mustRead);
  }

  /** Records a missed end. The ended stream is later read, and its whole state is pushed. */
  addMissedEnd({ key, clientMsgNo }: StreamName): void {
    if (this.#missedEndCount >= MAX_STREAM_ENDS) return;
    this.#missedEndCount += 1;
    this.#addPending({ key, clientMsgNo, cursor: BEGINNING, mustRead: true, isMissedEnd: true });
  }

  /** Pushes the state of an ended stream. `snapshot` is `undefined` if the stream was removed. */
  pushMissedEnd(name: StreamName, snapshot: StreamSnapshot | undefined): void {
    if (snapshot === undefined) this.#pendingStreams?.delete(streamName(name));
    else this.#pushMissing(snapshot);
  }

  /**
   * Pushes an active stream. Until `keepAll` is called, later events of the stream are left to the
   * store.
   */
  pushActiveStream(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo } = snapshot;
    const cursor = this.#pushSnapshot(snapshot);
    this.#addPending({
      key,
      clientMsgNo,
      cursor,
      mustRead: true,
      isPushed: true,
    });
  }

  /**
   * Pushes the withheld events that arrived before the stream's first withheld event. Then pushes
   * the part of `snapshot` that the client lacks. `snapshot` is `undefined` if the stream was
   * removed.
   */
  advanceStream(name: StreamName, snapshot: StreamSnapshot | undefined): void {
    const events = this.#events ?? [];
    const index = events.findIndex(
      (event) => event.stream !== undefined && streamName(event) === streamName(name),
    );
    const preceding = events.splice(0, index + 1);
    // The last of these events belongs to the stream itself. `#pushWithheld` skips it, because the
    // stream's `mustRead` is true. The snapshot contains this event.
    for (const event of preceding) this.#pushWithheld(event);
    if (snapshot !== undefined) this.#pushMissing(snapshot);
  }

  /**
   * Pushes the active streams that have not been pushed yet, the missing parts of the streams in
   * `read`, and all withheld events. `read` contains the streams that were read after `keepAll`.
   * Returns the number of streams in `read`.
   */
  flush(active: readonly StreamSnapshot[], read: readonly StreamSnapshot[]): number {
    const isNew = this.#events === undefined && this.#pendingStreams === undefined;
    if (isNew && active.length + read.length === 0) return 0;
    const unread = new Map(read.map((snapshot) => [streamName(snapshot), snapshot]));
    const caughtUp = unread.size;
    for (const [name, snapshot] of unread)
      if (this.#streams.get(name)?.isMissedEnd) {
        this.#pushMissing(snapshot);
        unread.delete(name);
      }
    for (const snapshot of active) {
      const { key, clientMsgNo } = snapshot;
      if (this.#streams.get(streamName(snapshot))?.isPushed) continue;
      unread.delete(streamName(snapshot));
      const cursor = this.#pushSnapshot(snapshot);
      this.#addPending({ key, clientMsgNo, cursor, mustRead: false });
    }
    const events = this.#events ?? [];
    const streamEvents = events.filter(({ stream }) => stream !== undefined);
    const streamsWithEvents = new Set(streamEvents.map(streamName));
    const catchUp = (name: string): void => {
      const snapshot = unread.get(name);
      if (snapshot !== undefined) this.#pushMissing(snapshot);
      unread.delete(name);
    };
    for (const name of [...unread.keys()]) if (!streamsWithEvents.has(name)) catchUp(name);
    for (const event of events) {
      if (event.stream !== undefined) catchUp(streamName(event));
      this.#pushWithheld(event);
    }
    if (this.scope.key === undefined) this.#recordStreamPositions();
    this.drop();
    return caughtUp;
  }

  drop(): void {
    this.session.charge(-this.#bytes);
    this.#bytes = 0;
    this.#heldItems = undefined;
    this.#events = undefined;
    this.#pendingStreams = undefined;
    this.#hasLeftEvents = false;
  }

  #withhold(event: ChannelEvent): void {
    const { stream, key, clientMsgNo } = event;
    if (stream === undefined) return this.#keepEvent(event);
    const pending = this.#streams.get(streamName(event));
    const { index, textOffset } = stream;
    if (pending !== undefined) {
      // The client has been sent all events before the first withheld event.
      if (pending.mayHaveMore && pending.cursor.index < index)
        pending.cursor = { index, textOffset };
      pending.mayHaveMore = false;
      if (this.#keepsAllEvents) return this.#keepEvent(event);
      // The kept event marks the stream's position among the withheld events.
      if (!pending.mustRead) this.#keepEvent(event);
      pending.mustRead = true;
      pending.leftIndex = stream.nextIndex;
      return;
    }
    const isContiguous = !this.isJoining || index === 0;
    // If the first events of a stream were not withheld, the stream is read from the store later,
    // but only if it is still active. After its end, it is not read, because the client has no part
    // of it.
    if (!isContiguous && !this.#keepsAllEvents) {
      this.#hasLeftEvents = true;
      return;
    }
    this.#keepEvent(event);
    const cursor = { index, textOffset };
    const mustRead = !this.#keepsAllEvents;
    if (isContiguous) this.#addPending({ key, clientMsgNo, cursor, mustRead });
  }

  /**
   * Returns true if the message was delivered. A message that is not stored counts as delivered if
   * a later message was delivered.
   */
  #isDelivered({ key, messageSeq, messageId }: Message): boolean {
    if (messageSeq > 0) return messageSeq <= this.seqOf(key);
    return messageId < (this.#positions?.get(key)?.id ?? 0);
  }

  /**
   * Records the client's stream positions in the session. Without these positions, an event could
   * be pushed twice, because the store may return an event before it is published.
   */
  #recordStreamPositions(): void {
    for (const { key, clientMsgNo, cursor } of this.#streams.values())
      this.session.noteReadStream({ key, clientMsgNo }, cursor);
  }

  /**
   * Pushes the part of a withheld event that the client lacks. Pushes nothing if the client's
   * position in the stream is unknown, or if the stream must still be read from the store.
   */
  #pushWithheld(event: ChannelEvent): void {
    const { stream } = event;
    if (stream === undefined) return this.#pushEvent(event);
    const pending = this.#streams.get(streamName(event));
    if (pending === undefined || pending.mustRead) return;
    const lackedPart = restOf(event, stream, pending.cursor);
    if (lackedPart === undefined) return;
    pending.cursor = cursorAfter(event, stream);
    this.#pushEvent(lackedPart);
  }

  /** Pushes the snapshot unless it is outdated. Returns the client's position in the stream. */
  #pushSnapshot(snapshot: StreamSnapshot): StreamCursor {
    const position = this.#streams.get(streamName(snapshot))?.cursor ?? BEGINNING;
    if (position.index > snapshot.nextIndex) return position;
    this.#pushState(snapshot);
    return cursorAtEnd(snapshot);
  }

  #pushState(snapshot: StreamSnapshot): void {
    const channel = channelSeenBy(this.session.uid, snapshot);
    this.session.push({ kind: "stream", channel, snapshot });
  }

  #pushMissing(snapshot: StreamSnapshot): void {
    const pending = this.#streams.get(streamName(snapshot));
    if (pending === undefined) return;
    if (pending.isMissedEnd) this.#pushState(snapshot);
    else for (const event of eventsFrom(snapshot, pending.cursor)) this.#pushEvent(event);
    // An event that arrived after the read may be missing from the snapshot.
    pending.mustRead = (pending.leftIndex ?? 0) > snapshot.nextIndex;
    if (pending.cursor.index < snapshot.nextIndex) pending.cursor = cursorAtEnd(snapshot);
  }

  #pushMessage(message: Message): void {
    this.session.pushMessage(message);
    if (message.stream !== undefined) this.recordSnapshot(message.stream);
  }

  #pushEvent(event: ChannelEvent): void {
    const channel = channelSeenBy(this.session.uid, event);
    this.session.push({ kind: "event", channel, event });
  }

  #addPending(pending: PendingStream): void {
    this.#pendingStreams ??= new Map();
    this.#pendingStreams.set(streamName(pending), pending);
  }

  #holdItem(item: Message | ChannelEvent): void {
    if (this.session.ended !== undefined) return;
    this.#heldItems ??= [];
    this.#heldItems.push(item);
    this.#charge(bytesOf(item));
  }

  #keepEvent(event: ChannelEvent): void {
    this.#events ??= [];
    this.#events.push(event);
    this.#charge(bytesOf(event));
  }

  #dropHeld(isDropped: (item: Message | ChannelEvent) => boolean): void {
    if (this.#heldItems === undefined) return;
    let bytes = 0;
    this.#heldItems = this.#heldItems.filter((item) => {
      if (isDropped(item)) bytes += bytesOf(item);
      return !isDropped(item);
    });
    if (bytes > 0) this.#charge(-bytes);
  }

  #charge(bytes: number): void {
    this.#bytes += bytes;
    this.session.charge(bytes);
  }
}

function isEnd({ stream }: ChannelEvent): boolean {
  return stream !== undefined && stream.state !== "active";
}

function isMessage(item: Message | ChannelEvent): item is Message {
  return "payload" in item;
}

function bytesOf(item: Message | ChannelEvent): number {
  return (isMessage(item) ? item.payload : item.data).length + HELD_OVERHEAD_BYTES;
}
