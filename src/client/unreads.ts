// Unread counts, for the `unread` event. Owns the last known state of each conversation. The client
// counts live messages itself, so that the server does no work per member for each message. When a
// message arrives in an unknown conversation, the client reads the conversation. After a reconnect,
// it reads the conversations that changed while it was offline. Does nothing while there is no
// handler for `unread`.

import {
  type ChannelKey,
  type ChannelRef,
  type Conversation,
  channelKey,
  messageTimeMs,
} from "../broker/model.ts";
import { BoundedMap } from "../lib/bounded-map.ts";
import type { ClientEvents, ReceivedMessage } from "./api.ts";
import type { Connack, RequestFunction } from "./connection.ts";
import { asJindouError } from "./errors.ts";

interface UnreadsPorts {
  readonly uid: string;
  readonly ask: RequestFunction;
  isWanted(): boolean;
  emit(count: ClientEvents["unread"]): void;
}

interface Entry {
  readonly channel: ChannelRef;
  /** Unread count, or -1 while it is unknown. */
  unread: number;
  headSeq: number;
  changedAtMs: number;
  isCounted: boolean;
  /** False if changes may have been missed. */
  isCurrent: boolean;
  /** True if a message arrived while the entry was not current. */
  isTouched: boolean;
  isReading: boolean;
  /**
   * Counter that is incremented by each change to this entry and by each reason to read the
   * conversation again.
   */
  version: number;
}

const MAX_CHANNELS = 10_000;
const PAGE_SIZE = 500;
/**
 * Margin that is subtracted from the time of `#sinceId` when changes are listed, because a store
 * may make changes visible out of order.
 */
const MARGIN_MS = 5000;

export class Unreads {
  readonly #ports: UnreadsPorts;
  readonly #entries = new BoundedMap<ChannelKey, Entry>(MAX_CHANNELS);
  /** Message id up to which no changes were missed, or -1 before the first connect. */
  #sinceId = -1;
  #isListing = false;
  #epoch = 0;

  constructor(ports: UnreadsPorts) {
    this.#ports = ports;
  }

  opened({ newestId }: Connack): void {
    if (this.#sinceId >= 0 && this.#ports.isWanted()) void this.#listChanges(newestId);
    else this.#sinceId = newestId;
  }

  lost(): void {
    this.#epoch += 1;
    this.#isListing = false;
    for (const [, entry] of this.#entries) {
      entry.isCurrent = false;
      entry.isTouched = false;
    }
  }

  message({ channel, messageSeq, messageId, fromUid, redDot }: ReceivedMessage): void {
    const entry = this.#entryOf(channel);
    if (entry === undefined || messageSeq === 0) return; // a message that is not stored has seq 0
    const isOwn = fromUid === this.#ports.uid;
    if (messageSeq <= entry.headSeq) {
      // The acknowledgement of a message that the user sent may arrive after later messages. How
      // many of the later messages are unread is then unknown.
      if (isOwn && entry.unread > 0) void this.#read(entry);
      return;
    }
    entry.headSeq = messageSeq;
    entry.changedAtMs = Math.max(entry.changedAtMs, messageTimeMs(messageId));
    entry.version += 1;
    // A missed message is not counted, because the user may already have read or deleted it.
    if (!entry.isCurrent || messageId <= this.#sinceId) {
      entry.isCurrent = false;
      entry.isTouched = true;
      if (!this.#isListing) void this.#read(entry);
    } else if (isOwn) this.#set(entry, 0);
    else if (redDot && entry.isCounted) this.#set(entry, entry.unread + 1);
  }

  /**
   * Records a conversation's state. `isNews` is false if the app itself requested the conversation.
   * The first known count then causes no `unread` event.
   */
  conversation(conversation: Conversation, isNews: boolean): void {
    const entry = this.#entryOf(conversation.channel);
    if (entry === undefined) return;
    if (mayBeOlder(conversation, entry)) void this.#read(entry);
    else this.#adopt(entry, conversation, isNews);
  }

  /**
   * Returns the entry of a channel. If there is no handler for `unread`, removes the entry instead,
   * because later changes will not be recorded.
   */
  #entryOf(channel: ChannelRef): Entry | undefined {
    const key = channelKey(channel, this.#ports.uid);
    if (!this.#ports.isWanted()) {
      this.#entries.delete(key);
      return undefined;
    }
    const entry = this.#entries.get(key) ?? {
      channel,
      unread: -1,
      headSeq: 0,
      changedAtMs: 0,
      isCounted: true,
      isCurrent: false,
      isTouched: false,
      isReading: false,
      version: 0,
    };
    this.#entries.renew(key, entry);
    return entry;
  }

  #adopt(entry: Entry, conversation: Conversation, isNews: boolean): void {
    const { headSeq, changedAtMs, unread, large } = conversation;
    const isFirst = entry.unread < 0;
    const isCounted = !large;
    Object.assign(entry, { headSeq, changedAtMs, isCounted, isTouched: false, isCurrent: true });
    entry.version += 1;
    if (isFirst && !isNews) entry.unread = unread;
    else this.#set(entry, unread);
  }

  #set(entry: Entry, unread: number): void {
    if (entry.unread === unread) return;
    entry.unread = unread;
    this.#ports.emit({ channel: entry.channel, unread });
  }

  /** Reads a conversation. Reads it again if it may have changed before the reply arrived. */
  async #read(entry: Entry): Promise<void> {
    entry.version += 1; // if a read is in progress, its reply may be too old
    if (entry.isReading) return;
    entry.isReading = true;
    const { channel, version } = entry;
    try {
      const request = { kind: "conversation", channel, change: undefined } as const;
      await this.#ports.ask(request, ({ conversation }) => {
        entry.isReading = false; // a push that arrived with the reply may start another read
        if (version !== entry.version) this.conversation(conversation, true);
        else this.#adopt(entry, conversation, true);
      });
    } catch (error) {
      entry.isReading = false;
      entry.isCurrent = false;
      if (asJindouError(error, "connection_lost").code === "not_in_channel") this.#set(entry, 0);
    }
  }

  async #listChanges(newestId: number): Promise<void> {
    const epoch = this.#epoch;
    const sinceMs = messageTimeMs(this.#sinceId) - MARGIN_MS;
    let isListed = false;
    this.#isListing = true;
    try {
      let cursor: string | undefined;
      do {
        const request = { kind: "conversations", limit: PAGE_SIZE, cursor, sinceMs } as const;
        const page = await this.#ports.ask(request, ({ conversations }) => {
          for (const conversation of conversations) this.conversation(conversation, true);
        });
        cursor = page.cursor;
      } while (cursor !== undefined);
      isListed = true;
    } catch {
      // the next connection lists the changes again
    }
    if (epoch !== this.#epoch) return;
    this.#isListing = false;
    if (isListed) this.#sinceId = newestId;
    for (const [, entry] of this.#entries) {
      if (entry.isCurrent) continue;
      // conversations that were deleted, and groups that the user left, are not in the list
      if (!isListed || entry.unread !== 0 || entry.isTouched) void this.#read(entry);
      else entry.isCurrent = true;
    }
  }
}

/**
 * Returns true if the state may be older than the last known message or change. Two changes in one
 * millisecond have the same time, so their order is unknown.
 */
function mayBeOlder({ headSeq, changedAtMs, unread }: Conversation, entry: Entry): boolean {
  const isSame = headSeq === entry.headSeq && changedAtMs === entry.changedAtMs;
  if (isSame) return entry.isCurrent && unread !== entry.unread;
  return headSeq < entry.headSeq || changedAtMs < entry.changedAtMs;
}
