// The embedded driver of the Store port: one process, one folder. Which part of the engine does which call. No state but its life's.

import { BrokerError } from "../../broker/errors.ts";
import type {
  ChannelStore,
  ConversationStore,
  InboxStore,
  ManagerStore,
  MessageStore,
  SessionStore,
  Store,
  StreamStore,
  UserState,
  UserStore,
} from "../../broker/ports.ts";
import {
  createLifecycle,
  type Lifecycle,
  toBrokerError,
} from "../lifecycle.ts";
import type { EmbeddedOptions } from "./embedded-options.ts";
import { type Engine, openEngine } from "./engine.ts";

export type { EmbeddedOptions } from "./embedded-options.ts";

/** Figures for metrics. Counters start at 0 with each start. */
export interface EmbeddedStats {
  /** Messages in the WAL and not yet in the database. */
  readonly tailRecords: number;
  readonly tailBytes: number;
  readonly journalBytes: number;
  readonly checkpoints: number;
  /** Messages accepted, stored or not. */
  readonly appends: number;
  /** Retries answered with the first message. */
  readonly duplicates: number;
  /** Commands accepted. */
  readonly commands: number;
  /** Copies of commands that left a full inbox before they were acknowledged. */
  readonly inboxDropped: number;
  /** Streams that go on. */
  readonly activeStreams: number;
  /** Memory of the streams that are held, about: those that go on, and those that just ended. */
  readonly activeStreamBytes: number;
}

export interface EmbeddedStore extends Store {
  /** All zero while the store is not running. */
  stats(): EmbeddedStats;
  /** Removes everything expired now; resolves to the number of messages. The store does it by itself every `sweepIntervalMs`. */
  sweep(): Promise<number>;
  /** Moves what is logged into the database now. The store does it by itself every `checkpointMs`. */
  checkpoint(): Promise<void>;
}

/** Closing finishes the commands that wait, for so long; the rest is refused. */
const COMMANDS_MS = 1500;

type Life = Lifecycle<Engine>;

/** Nothing is opened before `start`. */
export function createEmbeddedStore(options: EmbeddedOptions): EmbeddedStore {
  const life: Life = createLifecycle({
    open: () =>
      openEngine(options).catch((error: unknown) => {
        throw toBrokerError(error);
      }),
    async shut(engine, idle) {
      engine.sweep.stop();
      const refusing = setTimeout(() => engine.inbox.refuse(), COMMANDS_MS);
      await idle();
      clearTimeout(refusing);
      await engine.close();
    },
    restarts: true,
  });
  const { use } = life;
  return {
    start: life.start,
    close: life.close,
    ping: () => use(ping),
    ...controlCalls(life),
    ...messageCalls(life),
    stats() {
      const engine = life.running();
      return engine === undefined ? NO_STATS : statsOf(engine);
    },
    sweep: () => use((e) => e.sweep.run()),
    checkpoint: () => use((e) => e.checkpoint.run()),
  };
}

function controlCalls({
  use,
  useNow,
}: Life): UserStore & SessionStore & ChannelStore & ManagerStore {
  return {
    device: (uid, flag) => use((e) => e.users.device(uid, flag)),
    putDevice: (device) => use((e) => e.users.putDevice(device)),
    userStates: (uids) => use((e) => statesOf(e, uids)),

    login: (...asked) => use((e) => e.sessions.login(...asked)),
    removeSession: (session) => use((e) => e.sessions.removeSession(session)),
    endSession: (session, reason) =>
      use((e) => e.sessions.endSession(session, reason)),
    confirmSessions: (...asked) =>
      use((e) => e.sessions.confirmSessions(...asked)),
    sessionsOf: (uids) => use((e) => e.sessions.sessionsOf(uids)),

    channel: (channel) => use((e) => e.channels.channel(channel)),
    createChannel: (info, subscribers) =>
      use((e) => e.channels.createChannel(info, subscribers)),
    updateChannel: (channel, flags) =>
      use((e) => e.channels.updateChannel(channel, flags)),
    addSubscribers: (channel, uids, how) =>
      use((e) => e.channels.addSubscribers(channel, uids, how)),
    removeSubscribers: (channel, uids, membership) =>
      use((e) => e.channels.removeSubscribers(channel, uids, membership)),
    groupFacts: (channelId, uid) =>
      useNow((e) => e.channels.groupFacts(channelId, uid)),
    personFacts: (fromUid, toUid) =>
      useNow((e) => e.channels.personFacts(fromUid, toUid)),
    groupsOf: (uid) => use((e) => e.channels.groupsOf(uid)),
    groupsAmong: (...asked) => use((e) => e.channels.groupsAmong(...asked)),
    joinSeqs: (channelId, uids) =>
      use((e) => e.channels.joinSeqs(channelId, uids)),
    members: (channel) => use((e) => e.channels.members(channel)),
    membersAmong: (channel, uids) =>
      use((e) => e.channels.membersAmong(channel, uids)),

    putPasswordOnce: (username, password) =>
      use((e) => e.managers.putPasswordOnce(username, password)),
    putAccessToken: (tokenHash, owner, expiresAtMs) =>
      use((e) => e.managers.putAccessToken(tokenHash, owner, expiresAtMs)),
    accessTokenOwner: (tokenHash) =>
      use((e) => e.managers.accessTokenOwner(tokenHash)),
    removeAccessToken: (tokenHash) =>
      use((e) => e.managers.removeAccessToken(tokenHash)),
  };
}

function messageCalls(
  life: Life,
): MessageStore & StreamStore & InboxStore & ConversationStore {
  const { use, useNow } = life;
  return {
    append(draft) {
      const engine = life.running();
      if (engine === undefined) return Promise.reject(life.notRunning());
      return engine.appends.append(draft);
    },
    readMessages: (key, range) => use((e) => e.history.read(key, range)),
    headSeq: (key) => use((e) => e.history.headSeq(key)),
    resumeSeqs: (...asked) => use((e) => e.history.resumeSeqs(...asked)),

    appendCommand: (draft) => use((e) => e.inbox.appendCommand(draft)),
    readInbox: (uid, afterSeq, page) =>
      use((e) => e.inbox.readInbox(uid, afterSeq, page)),
    acknowledgeCommands: (uid, inboxSeqs) =>
      use((e) => e.inbox.acknowledgeCommands(uid, inboxSeqs)),

    streamEvent: (draft) => use((e) => e.streams.streamEvent(draft)),
    cancelStream: (key, clientMsgNo) =>
      use((e) => e.streams.cancelStream(key, clientMsgNo)),
    interruptStreams: (silentSinceMs) =>
      use((e) => e.streams.interruptStreams(silentSinceMs)),
    stream: (key, clientMsgNo) =>
      useNow((e) => e.streams.stream(key, clientMsgNo)),
    activeStream: (key) => useNow((e) => e.streams.activeStream(key)),
    personalStreamsOf: (uid) => useNow((e) => e.streams.personalStreamsOf(uid)),
    streamTextOffset: (key, clientMsgNo, index) =>
      useNow((e) => e.streams.streamTextOffset(key, clientMsgNo, index)),

    conversationsOf: (uid) => use((e) => e.conversations.conversationsOf(uid)),
    readConversations: (uid, channels, bounds) =>
      use((e) => e.conversations.readConversations(uid, channels, bounds)),
    conversation: (uid, channel) =>
      use((e) => e.conversations.conversation(uid, channel)),
    changeConversation: (uid, channel, change) =>
      use((e) => e.conversations.changeConversation(uid, channel, change)),
  };
}

function statesOf(
  { channels, inbox }: Engine,
  uids: readonly string[],
): Promise<UserState[]> {
  return Promise.all(
    uids.map(async (uid) => {
      const groups = await channels.groupsOf(uid);
      return { groups, inboxSeq: inbox.newestSeq(uid) };
    }),
  );
}

function ping({ wal, owner, checkpoint }: Engine): void {
  owner.assertHeld();
  if (checkpoint.failing) throw new BrokerError("unavailable");
  try {
    wal.probe();
  } catch (cause) {
    throw new BrokerError("unavailable", { cause });
  }
}

const NO_STATS: EmbeddedStats = {
  tailRecords: 0,
  tailBytes: 0,
  journalBytes: 0,
  checkpoints: 0,
  appends: 0,
  duplicates: 0,
  commands: 0,
  inboxDropped: 0,
  activeStreams: 0,
  activeStreamBytes: 0,
};

function statsOf({
  tail,
  wal,
  checkpoint,
  appends,
  inbox,
  live,
}: Engine): EmbeddedStats {
  const { appended, duplicates } = appends.counts;
  return {
    tailRecords: tail.records,
    tailBytes: tail.bytes,
    journalBytes: wal.bytes(),
    checkpoints: checkpoint.count,
    appends: appended,
    duplicates: duplicates + inbox.counts.duplicates,
    commands: inbox.counts.commands,
    inboxDropped: inbox.counts.dropped,
    activeStreams: live.countActive(),
    activeStreamBytes: live.memory,
  };
}
