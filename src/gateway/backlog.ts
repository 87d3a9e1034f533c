// The backlog of one session in one place: a group, or all personal channels of its user. It says
// how far the session is from being live there and keeps what it has not been given. State: the
// status, the position in each channel and each stream, the withheld messages and events.

import {
  type ChannelEvent,
  type ChannelKey,
  channelSeenBy,
  GROUP_CHANNEL,
  type Message,
  type StreamSnapshot,
} from "../broker/model.ts";
import {
  cursorAfter,
  cursorAtEnd,
  eventsFrom,
  restOf,
  type StreamCursor,
} from "../broker/stream-pieces.ts";
import {
  HELD_OVERHEAD_BYTES,
  type Session,
  type StreamName,
  streamName,
  type Withheld,
} from "./session.ts";

/**
 * From far to near; a session that is live has no backlog. `expected`: it may be about to join, and
 * gets nothing. `early`: it gets messages one frame at a time. `reading`: messages are left to the
 * store. `holding`: messages are held. `streams`: it gets messages; events are withheld.
 */
type BacklogStatus = "expected" | "early" | "reading" | "holding" | "streams";

/** Where messages and events of one or several channels go to sessions. */
export interface Place {
  /** The group's; undefined: all personal channels of the session. */
  readonly key: ChannelKey | undefined;
  /** Undefined: the session is live, or has nothing to do with the place. */
  backlogOf(session: Session): Backlog | undefined;
  /**
   * The session has everything before what is held: messages are live from now on, events are
   * withheld.
   */
  add(backlog: Backlog): void;
  /** From now on the events of a session that is live are withheld in `backlog`. */
  fallBehind(backlog: Backlog): void;
  /** Ends that, and gives the session the events that are published from now on. */
  goLive(backlog: Backlog): void;
}

interface PendingStream extends StreamName {
  /** The client has every event before it. */
  cursor: StreamCursor;
  /** Events were left out, or may have come before the first that is kept: the store has them. */
  mustRead: boolean;
  /** It was pushed whole when the client joined. */
  readonly isPresented?: boolean;
}

const BEGINNING: StreamCursor = { index: 0, textOffset: 0 };
const NO_STREAMS: ReadonlyMap<string, PendingStream> = new Map();

/** All personal channels of a session; its backlog hangs on the session. */
export const PERSONAL: Place = {
  key: undefined,
  backlogOf: ({ personal }) => (personal instanceof Backlog ? personal : undefined),
  add: (backlog) => backlog.release(),
  fallBehind(backlog) {
    backlog.session.personal = backlog;
  },
  goLive({ session }) {
    session.personal = undefined;
  },
};

export class Backlog implements Withheld {
  readonly session: Session;
  readonly place: Place;
  /**
   * It knows no stream but those it was shown or that begin meanwhile; else it has all before the
   * first withheld event.
   */
  readonly isJoining: boolean;
  status: BacklogStatus;
  /** It resumes from where its client is, not from where its user became a member. */
  isResumed = false;
  /** Through where each channel was given. */
  #given: Map<ChannelKey, { readonly seq: number; readonly id: number }> | undefined;
  #pendingStreams: Map<string, PendingStream> | undefined;
  /** Messages, and events that are kept nowhere else, in order of arrival. */
  #held: (Message | ChannelEvent)[] = [];
  readonly #events: ChannelEvent[] = [];
  /**
   * The store is read for the last time: everything is kept. Else of streams only what the store
   * cannot give again.
   */
  #keepsAll = false;
  #bytes = 0;

  constructor(session: Session, place: Place, status: BacklogStatus) {
    this.session = session;
    this.place = place;
    this.status = status;
    this.isJoining = status !== "streams";
  }

  /** Nothing is left to give to the client, as far as is known here. */
  get isEmpty(): boolean {
    return this.#events.length === 0 && !this.mustRead;
  }

  /** The session was ended, or left the place, or is live, or has a newer backlog. */
  get isOver(): boolean {
    const { session, place } = this;
    return session.ended !== undefined || place.backlogOf(session) !== this;
  }

  /** What is withheld is not all there is to push. */
  get mustRead(): boolean {
    for (const { mustRead } of this.#streams.values()) if (mustRead) return true;
    return false;
  }

  get isHolding(): boolean {
    return this.status === "holding";
  }

  get #streams(): ReadonlyMap<string, PendingStream> {
    return this.#pendingStreams ?? NO_STREAMS;
  }

  /** It is known where the session begins. */
  get hasBegun(): boolean {
    return this.#given !== undefined;
  }

  /** Through which seq the session was given the channel; 0: it has not begun there. */
  seqOf(key: ChannelKey): number {
    return this.#given?.get(key)?.seq ?? 0;
  }

  /**
   * The session was given the channel through that seq, or begins there. `id`: of the newest
   * message it was given; 0: none.
   */
  advance(key: ChannelKey, seq: number, id = 0): void {
    this.#given ??= new Map();
    const before = this.#given.get(key)?.id ?? 0;
    this.#given.set(key, { seq, id: Math.max(before, id) });
  }

  /** Takes a message of the place while the session is not live. Returns how many went out. */
  takeMessage(message: Message): number {
    if (this.status === "holding") this.#hold(message);
    if (this.status !== "early" || !this.session.isWelcome) return 0;
    this.#pushMessage(message);
    return 1;
  }

  /**
   * The same for an event. What the store has of a stream is left to it before the session is
   * `holding`.
   */
  takeEvent(event: ChannelEvent): void {
    const { status, session } = this;
    if (session.ended !== undefined) return;
    if (status === "early") {
      if (event.stream === undefined && session.isWelcome) this.#pushEvent(event);
    } else if (status === "holding" && event.stream === undefined) this.#hold(event);
    else if (status === "holding" || status === "streams") this.#withhold(event);
  }

  /** From now on messages are held. */
  hold(): void {
    this.status = "holding";
  }

  /**
   * Much is missing: messages that are stored are left to the store. Not those of personal
   * channels, as not all of them are read.
   */
  leaveToStore(): void {
    if (this.place.key === undefined) return;
    this.status = "reading";
    this.#forget((one) => isMessage(one) && one.messageSeq > 0);
  }

  /** The user left the group: nothing of it goes out any more. */
  forgetGroup(channelId: string): void {
    this.#forget(({ channel: { id, type } }) => type === GROUP_CHANNEL && id === channelId);
  }

  /**
   * Pushes what was held, except what the session was given or what would come out of order. From
   * now on messages are live.
   */
  release(): void {
    const held = this.#held;
    this.#forget(() => true);
    this.status = "streams";
    if (this.session.ended !== undefined) return;
    for (const one of held)
      if (!isMessage(one)) this.#pushEvent(one);
      else if (!this.#isPast(one)) this.#pushMessage(one);
  }

  /** From now on the content of streams is left to the store. */
  leaveStreamsToStore(): void {
    this.#keepsAll = false;
  }

  /** From now on everything is kept: the store is read once more. */
  keepAll(): void {
    this.#keepsAll = true;
  }

  /** The streams that must be read, in the order they were added. */
  get unread(): readonly StreamName[] {
    return [...this.#streams.values()].filter(({ mustRead }) => mustRead);
  }

  /** A message or an answer gave the client the state of a stream: its next event begins there. */
  shown(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo, nextIndex } = snapshot;
    const found = this.#streams.get(streamName(snapshot));
    const cursor = cursorAtEnd(snapshot);
    if (found === undefined) {
      if (snapshot.state !== "active") return;
      this.#addPending({ key, clientMsgNo, cursor, mustRead: this.isJoining });
    } else if (found.cursor.index < nextIndex) found.cursor = cursor;
  }

  /**
   * Pushes an active stream that the client has not heard of; what comes of it until `keepAll` is
   * left to the store.
   */
  present(snapshot: StreamSnapshot): void {
    const { key, clientMsgNo } = snapshot;
    const cursor = this.#pushSnapshot(snapshot);
    this.#addPending({
      key,
      clientMsgNo,
      cursor,
      mustRead: true,
      isPresented: true,
    });
  }

  /**
   * Pushes what comes before the stream among what is withheld, and then the stream as it was read;
   * undefined: it was removed.
   */
  advanceStream(name: StreamName, snapshot: StreamSnapshot | undefined): void {
    const place = this.#events.findIndex(
      (event) => event.stream !== undefined && streamName(event) === streamName(name),
    );
    const before = this.#events.splice(0, place + 1);
    for (const event of before) this.#pushWithheld(event); // the last one is of the stream, whose snapshot holds it
    if (snapshot !== undefined) this.#pushRest(snapshot);
  }

  /**
   * Pushes everything there is, given what was read after `keepAll` and, where it joins, what is
   * active. Then it may go live. Returns how many streams were caught up with from the store.
   */
  settle(active: readonly StreamSnapshot[], read: readonly StreamSnapshot[]): number {
    const rest = new Map(read.map((one) => [streamName(one), one]));
    for (const snapshot of active) {
      const { key, clientMsgNo } = snapshot;
      if (this.#streams.get(streamName(snapshot))?.isPresented) continue;
      rest.delete(streamName(snapshot));
      const cursor = this.#pushSnapshot(snapshot);
      this.#addPending({ key, clientMsgNo, cursor, mustRead: false });
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
    this.#held = [];
    this.#events.length = 0;
    this.#pendingStreams = undefined;
  }

  #withhold(event: ChannelEvent): void {
    const { stream, key, clientMsgNo } = event;
    if (stream === undefined) return this.#keep(event);
    const found = this.#streams.get(streamName(event));
    if (found !== undefined) {
      if (this.#keepsAll) return this.#keep(event);
      if (!found.mustRead) this.#keep(event); // marks the place among what is no stream's
      found.mustRead = true;
      return;
    }
    const isKnown = !this.isJoining || stream.index === 0;
    if (!isKnown && !this.#keepsAll) return; // active when it is read, or over before the client heard of it
    this.#keep(event);
    const { index, textOffset } = stream;
    const cursor = { index, textOffset };
    const mustRead = !this.#keepsAll;
    if (isKnown) this.#addPending({ key, clientMsgNo, cursor, mustRead });
  }

  /** It was given, or is stored nowhere and a later one was given: ids of a channel only grow. */
  #isPast({ key, messageSeq, messageId }: Message): boolean {
    if (messageSeq > 0) return messageSeq <= this.seqOf(key);
    return messageId < (this.#given?.get(key)?.id ?? 0);
  }

  /** On several servers an event of a personal channel may be read before it is published. */
  #noteRead(): void {
    for (const { key, clientMsgNo, cursor } of this.#streams.values())
      this.session.noteReadStream({ key, clientMsgNo }, cursor);
  }

  /** Unless the client has it, or the client never got the stream, or the store has lost it. */
  #pushWithheld(event: ChannelEvent): void {
    const { stream } = event;
    if (stream === undefined) return this.#pushEvent(event);
    const pending = this.#streams.get(streamName(event));
    if (pending === undefined || pending.mustRead) return;
    const rest = restOf(event, stream, pending.cursor);
    if (rest === undefined) return;
    pending.cursor = cursorAfter(event, stream);
    this.#pushEvent(rest);
  }

  /** Unless an answer that was read later showed more. Returns how far the client is. */
  #pushSnapshot(snapshot: StreamSnapshot): StreamCursor {
    const shown = this.#streams.get(streamName(snapshot))?.cursor ?? BEGINNING;
    if (shown.index > snapshot.nextIndex) return shown;
    const channel = channelSeenBy(this.session.uid, snapshot);
    this.session.push({ kind: "stream", channel, snapshot });
    return cursorAtEnd(snapshot);
  }

  #pushRest(snapshot: StreamSnapshot): void {
    const pending = this.#streams.get(streamName(snapshot));
    if (pending === undefined) return;
    for (const event of eventsFrom(snapshot, pending.cursor)) this.#pushEvent(event);
    pending.mustRead = false;
    if (pending.cursor.index < snapshot.nextIndex) pending.cursor = cursorAtEnd(snapshot);
  }

  #pushMessage(message: Message): void {
    this.session.pushMessage(message);
    if (message.stream !== undefined) this.shown(message.stream);
  }

  #pushEvent(event: ChannelEvent): void {
    const channel = channelSeenBy(this.session.uid, event);
    this.session.push({ kind: "event", channel, event });
  }

  #addPending(pending: PendingStream): void {
    this.#pendingStreams ??= new Map();
    this.#pendingStreams.set(streamName(pending), pending);
  }

  #hold(one: Message | ChannelEvent): void {
    if (this.session.ended !== undefined) return;
    this.#held.push(one);
    this.#charge(bytesOf(one));
  }

  #keep(event: ChannelEvent): void {
    this.#events.push(event);
    this.#charge(bytesOf(event));
  }

  #forget(isForgotten: (one: Message | ChannelEvent) => boolean): void {
    let bytes = 0;
    this.#held = this.#held.filter((one) => {
      if (isForgotten(one)) bytes += bytesOf(one);
      return !isForgotten(one);
    });
    if (bytes > 0) this.#charge(-bytes);
  }

  #charge(bytes: number): void {
    this.#bytes += bytes;
    this.session.charge(bytes);
  }
}

function isMessage(one: Message | ChannelEvent): one is Message {
  return "payload" in one;
}

function bytesOf(one: Message | ChannelEvent): number {
  return (isMessage(one) ? one.payload : one.data).length + HELD_OVERHEAD_BYTES;
}
