// The embedded driver of the Store port: one process and one folder. Passes each call of the port
// to a part of the opened store.

import { BrokerError } from "../../broker/errors.ts";
import type { MessageDraft, Store, StreamDraft, UserState } from "../../broker/ports.ts";
import { createLifecycle, type Lifecycle, toBrokerError } from "../lifecycle.ts";
import { whileRunning } from "../while-running.ts";
import { type EmbeddedOptions, type OpenStore, openStore } from "./open.ts";

export type { EmbeddedOptions } from "./open.ts";

/** Figures of a running store. The counters start at 0 each time the store is started. */
export interface EmbeddedStats {
  readonly memtableRecords: number;
  readonly memtableBytes: number;
  readonly walBytes: number;
  readonly freeBytes: number;
  readonly diskBytes: number;
  readonly checkpoints: number;
  readonly appends: number;
  readonly duplicates: number;
  readonly commands: number;
  /** Number of unacknowledged command copies that were dropped to make room for newer copies. */
  readonly inboxDropped: number;
  readonly activeStreams: number;
  /** Approximate size in bytes of the streams in memory, including ended streams. */
  readonly activeStreamBytes: number;
  /** Number of logs whose heads are in memory. */
  readonly openLogs: number;
  /** Number of bytes of log changes that have not been written to the database yet. */
  readonly activeLogBytes: number;
}

export interface EmbeddedStore extends Store {
  /** Returns the store's figures, which are all 0 while it is not running. */
  stats(): EmbeddedStats;
  /** Removes expired data. Resolves to the number of removed messages. */
  sweep(): Promise<number>;
  /** Runs a checkpoint. A failure is reported to `onError` and not thrown. */
  checkpoint(): Promise<void>;
}

/** Time after which `close` rejects commands and acknowledgements that are still queued. */
const COMMANDS_MS = 1500;

type EmbeddedLifecycle = Lifecycle<OpenStore>;

export function createEmbeddedStore(options: EmbeddedOptions): EmbeddedStore {
  const lifecycle: EmbeddedLifecycle = createLifecycle({
    open: (signal) =>
      openStore(options, signal).catch((error: unknown) => {
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
  const { use } = lifecycle;
  return {
    start: lifecycle.start,
    close: lifecycle.close,
    ping: () => use(ping),
    ...whileRunning(lifecycle, (store) => store.users, [
      "device",
      "putDevice",
      "isBanned",
      "putBan",
    ]),
    ...whileRunning(lifecycle, (store) => store.sessions, [
      "removeSession",
      "endSession",
      "confirmSessions",
      "setBackground",
      "sessionsOf",
      "takeOnline",
      "endOnline",
    ]),
    ...whileRunning(lifecycle, (store) => store.demand, [
      "setDemand",
      "noteReader",
      "readerDemand",
    ]),
    ...whileRunning(lifecycle, (store) => store.channels, [
      "channel",
      "createChannel",
      "updateChannel",
      "addSubscribers",
      "removeSubscribers",
      "changeList",
      "channelSizes",
      "listed",
      "groupsOf",
      "joinSeqs",
      "members",
      "membersAmong",
    ]),
    ...whileRunning(lifecycle, (store) => store.managers, [
      "putPasswordOnce",
      "putAccessToken",
      "accessTokenOwner",
      "removeAccessToken",
    ]),
    ...whileRunning(lifecycle, (store) => store.systemAccounts, ["systemUids", "changeSystemUids"]),
    ...whileRunning(lifecycle, (store) => store.keySets, ["keySet", "putKeySet"]),
    ...whileRunning(lifecycle, (store) => store.signingKeys, [
      "signingKeys",
      "putSigningKeyOnce",
      "removeSigningKey",
    ]),
    ...whileRunning(lifecycle, (store) => store.eventCalls, [
      "feedSwitch",
      "switchFeed",
      "newestEvents",
      "oldestEvents",
      "eventsSince",
      "readEvents",
      "trimEvents",
      "eventBytes",
    ]),
    onEvents(listener) {
      const store = lifecycle.running();
      if (store === undefined) throw lifecycle.notRunning();
      return store.eventCalls.onEvents(listener);
    },
    ...whileRunning(lifecycle, (store) => store.leases, ["acquireLease", "releaseLease"]),
    ...whileRunning(lifecycle, (store) => store.push, [
      "readSeqs",
      "addAcknowledged",
      "acknowledgedBy",
      "claimPushCursor",
      "movePushCursor",
    ]),
    ...whileRunning(lifecycle, (store) => store.webhooks, [
      "webhooks",
      "putWebhook",
      "removeWebhook",
      "webhookTexts",
      "acquireWebhookLeases",
      "saveWebhookTexts",
      "addWebhookAttempts",
      "webhookAttempts",
    ]),
    ...whileRunning(lifecycle, (store) => store.inbox, [
      "appendCommand",
      "readInbox",
      "acknowledgeCommands",
    ]),
    ...whileRunning(lifecycle, (store) => store.streams, [
      "createStream",
      "appendToStream",
      "cancelStream",
      "interruptStreams",
      "streamEnds",
      "personalStreamEnds",
    ]),
    ...whileRunning(lifecycle, (store) => store.logCalls, [
      "createLog",
      "appendLog",
      "logHead",
      "readLog",
      "deleteLog",
    ]),
    ...whileRunning(lifecycle, (store) => store.conversations, [
      "newestConversations",
      "readConversations",
      "conversation",
      "changeConversation",
      "importPosition",
    ]),
    ...whileRunning(lifecycle, (store) => store.imports, [
      "importState",
      "changeImportPhase",
      "countImported",
      "storedData",
      "importMessages",
      "seqOfSource",
    ]),
    ...whileRunning(lifecycle, (store) => store.appends, ["seqOfRetry"]),
    userStates: (uids) => use((store) => statesOf(store, uids)),
    headSeq: (key) => use((store) => store.history.headSeq(key)),
    readMessages: (key, range) => use((store) => store.history.read(key, range)),
    ...hotCalls(lifecycle),
    stats() {
      const store = lifecycle.running();
      return store === undefined ? NO_STATS : statsOf(store);
    },
    sweep: () => use((store) => store.sweep.run()),
    checkpoint: () => use((store) => store.checkpoint.run()),
  };
}

/**
 * Creates the methods on hot paths. Apart from `append` and `streamEvent`, they return a
 * promise only if the call must wait or is rejected.
 */
function hotCalls(lifecycle: EmbeddedLifecycle) {
  const { useNow } = lifecycle;
  return {
    append(draft: MessageDraft) {
      const store = lifecycle.running();
      if (store === undefined) return Promise.reject(lifecycle.notRunning());
      return store.appends.append(draft);
    },
    streamEvent(draft: StreamDraft) {
      const store = lifecycle.running();
      if (store === undefined) return Promise.reject(lifecycle.notRunning());
      return store.streams.streamEvent(draft);
    },
    login: (session, incarnation, terms) =>
      useNow((store) => store.sessions.login(session, incarnation, terms)),
    joinState: (request) => useNow((store) => store.joinState(request)),
    groupFacts: (channelId, uid) => useNow((store) => store.channels.groupFacts(channelId, uid)),
    personFacts: (fromUid, toUid) => useNow((store) => store.channels.personFacts(fromUid, toUid)),
    stream: (key, clientMsgNo) => useNow((store) => store.streams.stream(key, clientMsgNo)),
    activeStreams: (keys) => useNow((store) => store.streams.activeStreams(keys)),
    personalStreamsOf: (uid) => useNow((store) => store.streams.personalStreamsOf(uid)),
    streamTextOffset: (key, clientMsgNo, index) =>
      useNow((store) => store.streams.streamTextOffset(key, clientMsgNo, index)),
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
  if (checkpoint.isFailing) throw new BrokerError("unavailable");
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
  freeBytes: 0,
  diskBytes: 0,
  checkpoints: 0,
  appends: 0,
  duplicates: 0,
  commands: 0,
  inboxDropped: 0,
  activeStreams: 0,
  activeStreamBytes: 0,
  openLogs: 0,
  activeLogBytes: 0,
};

function statsOf({
  tables,
  memtable,
  wal,
  checkpoint,
  appends,
  inbox,
  live,
  logs,
}: OpenStore): EmbeddedStats {
  const { appended, duplicates } = appends.counts;
  return {
    memtableRecords: memtable.records,
    memtableBytes: memtable.bytes,
    walBytes: wal.bytes(),
    freeBytes: tables.space.freeBytes,
    diskBytes: tables.space.diskBytes,
    checkpoints: checkpoint.count,
    appends: appended,
    duplicates: duplicates + inbox.counts.duplicates,
    commands: inbox.counts.commands,
    inboxDropped: inbox.counts.dropped,
    activeStreams: live.countActive(),
    activeStreamBytes: live.memory,
    openLogs: logs.count,
    activeLogBytes: logs.bytes,
  };
}
