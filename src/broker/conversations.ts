// Lists users' conversations with their unread counts, and changes read positions [DESIGN §2.4]. A
// limited number of lists is built at the same time, and users take turns.

import { FairSemaphore } from "../lib/fair-semaphore.ts";
import {
  positionAt,
  type Selection,
  type SelectionQuery,
  selectPage,
} from "./conversation-pages.ts";
import { BrokerError } from "./errors.ts";
import { assertId } from "./ids.ts";
import type { ChannelRef, Conversation, ConversationHead } from "./model.ts";
import type { Announcer, Clock, ConversationChange, ConversationStore } from "./ports.ts";

/**
 * Maximum number of lists that are built at the same time. Each list takes a share of every
 * event-loop turn.
 */
const CONCURRENT_LISTS = 4;
/**
 * Maximum number of one user's waiting calls. Equals the default maximum number of sessions per
 * user.
 */
const MAX_WAITING_LISTS = 100;

interface ChangeOwner {
  readonly uid: string;
  /**
   * Session that makes the change and is not notified. `undefined` if all sessions are notified.
   */
  readonly origin: string | undefined;
}

interface ConversationRange {
  readonly cursor: string | undefined;
  /**
   * Minimum `changedAtMs` of the listed conversations, in Unix milliseconds. If absent, all
   * conversations are listed. If there is a cursor, the `sinceMs` of the first page applies.
   */
  readonly sinceMs?: number | undefined;
  readonly limit: number;
  /**
   * Maximum total size of messages and streams. The first conversation is returned even if it is
   * larger.
   */
  readonly maxBytes: number;
}

interface ConversationPage {
  readonly conversations: readonly Conversation[];
  readonly cursor: string | undefined;
  readonly readCount: number;
}

export interface ConversationFilter {
  /** Minimum `changedAtMs` of the conversations, in Unix milliseconds. 0 means no limit. */
  readonly version: number;
  readonly onlyUnread: boolean;
  readonly excludedTypes: readonly number[];
}

interface FilteredSelection extends Selection {
  /**
   * Time in Unix milliseconds. A later selection since this time contains every change that this
   * selection lacks.
   */
  readonly upToMs: number;
  /** Returns the channels of all conversations, including those that do not pass the filter. */
  channels(): readonly ChannelRef[];
}

/**
 * Maximum time by which a version may be later than both the current time and the user's newest
 * change. A later version is treated as 0.
 */
const MAX_VERSION_AHEAD_MS = 86_400_000;
const COUNT_GROWTH = 4;

/** All methods throw `bad_id` for an invalid id. */
export interface Conversations {
  /**
   * Throws `overloaded` if `MAX_WAITING_LISTS` calls of the user are waiting, and `bad_cursor` if
   * the cursor is not valid.
   */
  list(uid: string, range: ConversationRange): Promise<ConversationPage>;
  /**
   * Selects conversations. If there is a cursor, `filter.version` is ignored. Throws the same
   * errors as `list`.
   */
  select(
    uid: string,
    filter: ConversationFilter,
    range: Omit<ConversationRange, "sinceMs" | "maxBytes">,
  ): Promise<FilteredSelection>;
  /** Returns the channels' conversations that have a visible message, newest first. */
  among(uid: string, channels: readonly ChannelRef[]): Promise<readonly ConversationHead[]>;
  /**
   * Returns a conversation, even if it has no messages. Throws `not_in_channel` if the user is not
   * in the channel.
   */
  read(uid: string, channel: ChannelRef): Promise<Conversation>;
  /**
   * Throws `not_in_channel`, or `bad_request` if a number in `change` is negative or not an
   * integer.
   */
  change(by: ChangeOwner, channel: ChannelRef, change: ConversationChange): Promise<Conversation>;
}

export function createConversations({
  store,
  publisher,
  clock,
  lookBackMs = 0,
}: {
  readonly store: ConversationStore;
  readonly publisher: Announcer;
  readonly clock: Clock;
  /**
   * Milliseconds by which the `changedAtMs` of a change may be lower than that of an earlier
   * change. A list of all changes since a given time therefore starts `lookBackMs` before that
   * time.
   */
  readonly lookBackMs?: number;
}): Conversations {
  const turns = new FairSemaphore(
    CONCURRENT_LISTS,
    MAX_WAITING_LISTS,
    () =>
      new BrokerError("overloaded", {
        message: "The user has requested too many conversation lists at once; try again later",
      }),
  );

  async function inTurn<T>(uid: string, build: () => Promise<T>): Promise<T> {
    assertId(uid, "uid");
    return turns.run(uid, build);
  }

  async function sinceMsOf(uid: string, version: number): Promise<number> {
    const isAhead = (newestMs: number) => version > newestMs + MAX_VERSION_AHEAD_MS;
    if (isAhead(clock())) {
      const newest = { sinceMs: 0, count: 1, beforeId: Number.MAX_SAFE_INTEGER };
      const { newestChangeMs } = await store.newestConversations(uid, newest);
      if (isAhead(newestChangeMs)) return 0;
    }
    return Math.max(0, version - lookBackMs);
  }

  async function pageOf(query: SelectionQuery, filter: Omit<ConversationFilter, "version">) {
    const { uid, limit, cursor } = query;
    const position = cursor ? positionAt(cursor, uid) : undefined;
    const { sinceMs, beforeId } = position ?? { ...query, beforeId: Number.MAX_SAFE_INTEGER };
    const passes = ({ unread, channel }: ConversationHead) =>
      (!filter.onlyUnread || unread > 0) && !filter.excludedTypes.includes(channel.type);
    for (let count = limit + 1; ; count *= COUNT_GROWTH) {
      const range = { ...filter, sinceMs, beforeId, count };
      const list = await store.newestConversations(uid, range);
      const heads = list.heads.filter(passes);
      const selection = selectPage({ ...list, heads }, query, position);
      if (selection !== undefined) return { selection, list };
    }
  }

  async function list(
    uid: string,
    { cursor, limit, maxBytes, ...range }: ConversationRange,
  ): Promise<ConversationPage> {
    const sinceMs = await sinceMsOf(uid, range.sinceMs ?? 0);
    const query = { uid, sinceMs, limit, cursor, lookBackMs };
    const { selection, list } = await pageOf(query, { onlyUnread: false, excludedTypes: [] });
    const channels = selection.heads.map(({ channel }) => channel);
    const page = await store.readConversations(uid, channels, { limit, maxBytes });
    const last = page.conversations.at(-1)?.channel;
    const count =
      page.more && last !== undefined
        ? channels.findIndex(({ id, type }) => id === last.id && type === last.type) + 1
        : channels.length;
    return {
      // The page is sorted again, because newer messages may have been stored between the two
      // reads.
      conversations: newestFirst(page.conversations),
      cursor: selection.cursorAfter(count, page.conversations),
      readCount: list.heads.length,
    };
  }

  return {
    list: (uid, range) => inTurn(uid, () => list(uid, range)),

    select: (uid, { version, onlyUnread, excludedTypes }, { cursor, limit }) =>
      inTurn(uid, async () => {
        const sinceMs = await sinceMsOf(uid, version);
        const query = { uid, sinceMs, limit, cursor, lookBackMs };
        const { selection, list } = await pageOf(query, { onlyUnread, excludedTypes });
        const { channels, newestChangeMs, pendingMs = Infinity } = list;
        return { ...selection, channels, upToMs: Math.min(newestChangeMs, pendingMs) };
      }),

    among: (uid, channels) => {
      for (const { id } of channels) assertId(id, "channel_id");
      return inTurn(uid, async () => {
        const keys = new Map(channels.map((channel) => [channelKeyOf(channel), channel]));
        const read = (channel: ChannelRef) => store.conversation(uid, channel);
        const conversations = await Promise.all([...keys.values()].map(read));
        return newestFirst(conversations.filter((item) => item !== undefined).filter(hasMessage));
      });
    },

    async read(uid, channel) {
      assertId(uid, "uid");
      assertId(channel.id, "channel_id");
      return inConversation(await store.conversation(uid, channel));
    },

    async change({ uid, origin }, channel, change) {
      assertId(uid, "uid");
      assertId(channel.id, "channel_id");
      assertChange(change);
      const conversation = inConversation(await store.changeConversation(uid, channel, change));
      const { kind } = change;
      await publisher.announce([
        {
          kind: "conversation",
          ...{ uid, conversation, change: kind, origin },
        },
      ]);
      return conversation;
    },
  };
}

/** Returns the conversation, or throws `not_in_channel` if it is `undefined`. */
function inConversation(conversation: Conversation | undefined): Conversation {
  if (conversation === undefined) throw new BrokerError("not_in_channel");
  return conversation;
}

const channelKeyOf = ({ type, id }: ChannelRef) => `${type}:${id}`;

function hasMessage(conversation: Conversation): conversation is Conversation & ConversationHead {
  return conversation.last !== undefined;
}

function newestFirst<T extends Conversation | ConversationHead>(
  conversations: readonly T[],
): readonly T[] {
  // The ids are compared rather than the timestamps, because timestamps may decrease when a clock
  // is set back.
  const idOf = ({ last }: T) => last?.messageId ?? 0;
  return conversations.toSorted((a, b) => idOf(b) - idOf(a));
}

function assertChange(change: ConversationChange): void {
  const path = change.kind === "unread" ? "unread" : "seq";
  const number = change.kind === "unread" ? change.unread : (change.seq ?? 0);
  if (Number.isSafeInteger(number) && number >= 0) return;
  throw new BrokerError("bad_request", {
    message: `${path} must be an integer of at least 0`,
    details: [{ path, message: "must be an integer of at least 0" }],
  });
}
