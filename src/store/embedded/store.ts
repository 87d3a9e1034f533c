// The embedded driver of the Store port: one process, one folder. Which step does which call. No
// state but its lifecycle's.

import { BrokerError } from "../../broker/errors.ts";
import type { MessageDraft, Store, UserState } from "../../broker/ports.ts";
import { guarded } from "../guarded.ts";
import { createLifecycle, type Lifecycle, toBrokerError } from "../lifecycle.ts";
import { type EmbeddedOptions, type OpenStore, openStore } from "./open.ts";

export type { EmbeddedOptions } from "./open.ts";

/** Figures for metrics. Counters start at 0 with each start. */
export interface EmbeddedStats {
  /** Messages in the WAL and not yet in the database. */
  readonly memtableRecords: number;
  readonly memtableBytes: number;
  readonly walBytes: number;
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
  /**
   * Removes everything expired now; resolves to the number of messages. The store does it by itself
   * every `sweepIntervalMs`.
   */
  sweep(): Promise<number>;
  /**
   * Moves what is logged into the database now. The store does it by itself every `checkpointMs`.
   */
  checkpoint(): Promise<void>;
}

/** Closing finishes the commands that wait, for so long; the rest is refused. */
const COMMANDS_MS = 1500;

type Life = Lifecycle<OpenStore>;

/** Nothing is opened before `start`. */
export function createEmbeddedStore(options: EmbeddedOptions): EmbeddedStore {
  const life: Life = createLifecycle({
    open: () =>
      openStore(options).catch((error: unknown) => {
        throw toBrokerError(error);
      }),
    async shut(store, idle) {
      store.sweep.stop();
      const refusing = setTimeout(() => store.inbox.refuse(), COMMANDS_MS);
      await idle();
      clearTimeout(refusing);
      await store.close();
    },
    restarts: true,
  });
  const { use } = life;
  return {
    start: life.start,
    close: life.close,
    ping: () => use(ping),
    ...guarded(life, (e) => e.users, ["device", "putDevice"]),
    ...guarded(life, (e) => e.sessions, [
      "login",
      "removeSession",
      "endSession",
      "confirmSessions",
      "sessionsOf",
    ]),
    ...guarded(life, (e) => e.channels, [
      "channel",
      "createChannel",
      "updateChannel",
      "addSubscribers",
      "removeSubscribers",
      "changeList",
      "channelSizes",
      "listed",
      "groupsOf",
      "groupsAmong",
      "joinSeqs",
      "members",
      "membersAmong",
    ]),
    ...guarded(life, (e) => e.managers, [
      "putPasswordOnce",
      "putAccessToken",
      "accessTokenOwner",
      "removeAccessToken",
    ]),
    ...guarded(life, (e) => e.systemAccounts, ["systemUids", "changeSystemUids"]),
    ...guarded(life, (e) => e.inbox, ["appendCommand", "readInbox", "acknowledgeCommands"]),
    ...guarded(life, (e) => e.streams, ["streamEvent", "cancelStream", "interruptStreams"]),
    ...guarded(life, (e) => e.conversations, [
      "conversationsOf",
      "readConversations",
      "conversation",
      "changeConversation",
    ]),
    userStates: (uids) => use((e) => statesOf(e, uids)),
    headSeq: (key) => use((e) => e.history.headSeq(key)),
    resumeSeqs: (...asked) => use((e) => e.history.resumeSeqs(...asked)),
    readMessages: (key, range) => use((e) => e.history.read(key, range)),
    ...hotCalls(life),
    stats() {
      const store = life.running();
      return store === undefined ? NO_STATS : statsOf(store);
    },
    sweep: () => use((e) => e.sweep.run()),
    checkpoint: () => use((e) => e.checkpoint.run()),
  };
}

/**
 * What is asked with every message, or chunk of a stream: no promise where the answer is at hand.
 */
function hotCalls(life: Life) {
  const { useNow } = life;
  return {
    append(draft: MessageDraft) {
      const store = life.running();
      if (store === undefined) return Promise.reject(life.notRunning());
      return store.appends.append(draft);
    },
    groupFacts: (channelId, uid) => useNow((e) => e.channels.groupFacts(channelId, uid)),
    personFacts: (fromUid, toUid) => useNow((e) => e.channels.personFacts(fromUid, toUid)),
    stream: (key, clientMsgNo) => useNow((e) => e.streams.stream(key, clientMsgNo)),
    activeStream: (key) => useNow((e) => e.streams.activeStream(key)),
    personalStreamsOf: (uid) => useNow((e) => e.streams.personalStreamsOf(uid)),
    streamTextOffset: (key, clientMsgNo, index) =>
      useNow((e) => e.streams.streamTextOffset(key, clientMsgNo, index)),
  } satisfies Partial<Store>;
}

function statesOf({ channels, inbox }: OpenStore, uids: readonly string[]): Promise<UserState[]> {
  return Promise.all(
    uids.map(async (uid) => {
      const groups = await channels.groupsOf(uid);
      return { groups, inboxSeq: inbox.newestSeq(uid) };
    }),
  );
}

function ping({ wal, owner, checkpoint }: OpenStore): void {
  owner.assertHeld();
  if (checkpoint.failing) throw new BrokerError("unavailable");
  try {
    wal.probe();
  } catch (cause) {
    throw new BrokerError("unavailable", { cause });
  }
}

const NO_STATS: EmbeddedStats = {
  memtableRecords: 0,
  memtableBytes: 0,
  walBytes: 0,
  checkpoints: 0,
  appends: 0,
  duplicates: 0,
  commands: 0,
  inboxDropped: 0,
  activeStreams: 0,
  activeStreamBytes: 0,
};

function statsOf({ memtable, wal, checkpoint, appends, inbox, live }: OpenStore): EmbeddedStats {
  const { appended, duplicates } = appends.counts;
  return {
    memtableRecords: memtable.records,
    memtableBytes: memtable.bytes,
    walBytes: wal.bytes(),
    checkpoints: checkpoint.count,
    appends: appended,
    duplicates: duplicates + inbox.counts.duplicates,
    commands: inbox.counts.commands,
    inboxDropped: inbox.counts.dropped,
    activeStreams: live.countActive(),
    activeStreamBytes: live.memory,
  };
}
