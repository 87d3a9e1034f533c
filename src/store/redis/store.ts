// The Redis driver of the Store port: any number of nodes on one Redis, which decides. Which part does which call. No state but its life's.

import type {
  ChannelStore,
  ConversationStore,
  InboxStore,
  ManagerStore,
  MessageStore,
  SessionStore,
  Store,
  UserStore,
} from "../../broker/ports.ts";
import type { StreamStore } from "../../broker/stream-ports.ts";
import type { ChannelFeed } from "../../redis/channel-feed.ts";
import { Written } from "../../redis/written.ts";
import { createEngine, type Engine } from "./engine.ts";
import { Life } from "./life.ts";
import type { RedisStoreParts } from "./parts.ts";
import { UnreadableRecords } from "./unreadable.ts";

export { redisStoreScripts } from "./engine.ts";

/** `link`: shared with the cluster, knows `redisStoreScripts`; the store starts it, whoever made it closes it. */
export type RedisStoreOptions = Omit<RedisStoreParts, "written" | "unreadable">;

/** Figures for metrics, of this node. Counters start at 0 with the store. */
export interface RedisStoreStats {
  /** Messages accepted, stored or not. */
  readonly appends: number;
  /** Retries answered with the first message. */
  readonly duplicates: number;
  /** Commands accepted. */
  readonly commands: number;
  /** Copies of commands that left a full inbox before they were acknowledged. */
  readonly inboxDropped: number;
  /** Records that were left out of what was read, because they cannot be decoded. */
  readonly unreadable: number;
}

export interface RedisStore extends Store, ChannelFeed {
  stats(): RedisStoreStats;
  /** Removes everything expired now; resolves to the number of messages. The store does it by itself every `sweepIntervalMs`. */
  sweep(): Promise<number>;
}

/** Nothing is asked of Redis before `start`, which throws an Error for the operator when it cannot be used. */
export function createRedisStore(options: RedisStoreOptions): RedisStore {
  const { link } = options;
  const written = new Written(link);
  const unreadable = new UnreadableRecords(options.onProblem);
  const parts = {
    ...options,
    unreadable,
    written: (key?: string) => written.wait(key),
  };
  const engine = createEngine(parts);
  const life = new Life({
    async open() {
      await link.start();
      engine.sweep.start();
    },
    async shut() {
      await engine.sweep.close();
      written.close();
    },
  });
  return {
    start: () => life.start(),
    close: () => life.close(),
    ping: () => life.use(() => link.ping()),
    ...controlCalls(life, engine),
    ...messageCalls(life, engine),
    ...personCalls(life, engine),
    ...feedCalls(life, engine),
    stats: () => statsOf(engine, unreadable),
    sweep: () => life.use(() => engine.sweep.run()),
  };
}

function controlCalls(
  life: Life,
  { users, sessions, channels, managers }: Engine,
): UserStore & SessionStore & ChannelStore & ManagerStore {
  return {
    device: (uid, flag) => life.use(() => users.device(uid, flag)),
    putDevice: (device) => life.use(() => users.putDevice(device)),
    userStates: (uids) => life.use(() => users.userStates(uids)),

    login: (...asked) => life.use(() => sessions.login(...asked)),
    removeSession: (session) => life.use(() => sessions.removeSession(session)),
    endSession: (session, reason) =>
      life.use(() => sessions.endSession(session, reason)),
    confirmSessions: (...asked) =>
      life.use(() => sessions.confirmSessions(...asked)),
    sessionsOf: (uids) => life.use(() => sessions.sessionsOf(uids)),

    channel: (channel) => life.use(() => channels.channel(channel)),
    createChannel: (info, subscribers) =>
      life.use(() => channels.createChannel(info, subscribers)),
    updateChannel: (channel, flags) =>
      life.use(() => channels.updateChannel(channel, flags)),
    addSubscribers: (channel, uids, how) =>
      life.use(() => channels.addSubscribers(channel, uids, how)),
    removeSubscribers: (channel, uids, membership) =>
      life.use(() => channels.removeSubscribers(channel, uids, membership)),
    groupFacts: (channelId, uid) =>
      life.use(() => channels.groupFacts(channelId, uid)),
    personFacts: (fromUid, toUid) =>
      life.use(() => channels.personFacts(fromUid, toUid)),
    groupsOf: (uid) => life.use(() => channels.groupsOf(uid)),
    groupsAmong: (...asked) => life.use(() => channels.groupsAmong(...asked)),
    joinSeqs: (channelId, uids) =>
      life.use(() => channels.joinSeqs(channelId, uids)),
    members: (channel) => life.use(() => channels.members(channel)),
    membersAmong: (channel, uids) =>
      life.use(() => channels.membersAmong(channel, uids)),

    putPasswordOnce: (username, password) =>
      life.use(() => managers.putPasswordOnce(username, password)),
    putAccessToken: (tokenHash, owner, expiresAtMs) =>
      life.use(() => managers.putAccessToken(tokenHash, owner, expiresAtMs)),
    accessTokenOwner: (tokenHash) =>
      life.use(() => managers.accessTokenOwner(tokenHash)),
    removeAccessToken: (tokenHash) =>
      life.use(() => managers.removeAccessToken(tokenHash)),
  };
}

function messageCalls(
  life: Life,
  { messages, streams }: Engine,
): MessageStore & StreamStore {
  return {
    append: (draft) => life.use(() => messages.append(draft)),
    readMessages: (key, range) =>
      life.use(() => messages.readMessages(key, range)),
    headSeq: (key) => life.use(() => messages.headSeq(key)),
    resumeSeqs: (...asked) => life.use(() => messages.resumeSeqs(...asked)),

    streamEvent: (draft) => life.use(() => streams.streamEvent(draft)),
    cancelStream: (key, clientMsgNo) =>
      life.use(() => streams.cancelStream(key, clientMsgNo)),
    interruptStreams: (silentSinceMs) =>
      life.use(() => streams.interruptStreams(silentSinceMs)),
    stream: (key, clientMsgNo) =>
      life.use(() => streams.stream(key, clientMsgNo)),
    activeStream: (key) => life.use(() => streams.activeStream(key)),
    personalStreamsOf: (uid) => life.use(() => streams.personalStreamsOf(uid)),
    streamTextOffset: (key, clientMsgNo, index) =>
      life.use(() => streams.streamTextOffset(key, clientMsgNo, index)),
  };
}

function personCalls(
  life: Life,
  { inbox, conversations }: Engine,
): InboxStore & ConversationStore {
  return {
    appendCommand: (draft) => life.use(() => inbox.appendCommand(draft)),
    readInbox: (uid, afterSeq, page) =>
      life.use(() => inbox.readInbox(uid, afterSeq, page)),
    acknowledgeCommands: (uid, inboxSeqs) =>
      life.use(() => inbox.acknowledgeCommands(uid, inboxSeqs)),

    conversationsOf: (uid) =>
      life.use(() => conversations.conversationsOf(uid)),
    readConversations: (uid, channels, bounds) =>
      life.use(() => conversations.readConversations(uid, channels, bounds)),
    conversation: (uid, channel) =>
      life.use(() => conversations.conversation(uid, channel)),
    changeConversation: (uid, channel, change) =>
      life.use(() => conversations.changeConversation(uid, channel, change)),
  };
}

function feedCalls(life: Life, { feed }: Engine): ChannelFeed {
  return {
    position: (key, known) => life.use(() => feed.position(key, known)),
    pubOf: (key) => life.use(() => feed.pubOf(key)),
    messages: (key, range) => life.use(() => feed.messages(key, range)),
    personalChannelsSince: (uid, sinceMs) =>
      life.use(() => feed.personalChannelsSince(uid, sinceMs)),
  };
}

function statsOf(
  { messages, inbox }: Engine,
  unreadable: UnreadableRecords,
): RedisStoreStats {
  const { appended, duplicates } = messages.counts;
  return {
    appends: appended,
    duplicates: duplicates + inbox.counts.duplicates,
    commands: inbox.counts.commands,
    inboxDropped: inbox.counts.dropped,
    unreadable: unreadable.count,
  };
}
