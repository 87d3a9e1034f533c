// Reads the state that a session needs to join. On a single server, one script is enough unless the
// user has more than `CHANNELS_PER_CALL` groups or resume points. On a Redis Cluster, each script
// reads only groups, only positions or only the user's part, all in one slot.

import {
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  type InboxCommand,
} from "../../../broker/model.ts";
import type {
  InboxStore,
  JoinRequest,
  ResumePosition,
  ResumeSeqs,
  SessionStore,
} from "../../../broker/ports.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { type Arg, loadScript } from "../../../redis/script.ts";
import { packr } from "../../../redis/wire.ts";
import { lua, type RedisStorePorts } from "../ports.ts";
import { bucketArgs, channelPieces } from "./channel-pieces.ts";
import { commandOf, copiesOf } from "./inbox.ts";
import { type GroupIndex, indexDigest } from "./user-groups.ts";

const JOIN = loadScript(
  lua("session_join"),
  ...["entry", "resume_seqs", "groups_index", "inbox_copies"].map(lua),
  ...["channel_record", "group_membership"].map(lua),
);

/**
 * Maximum number of groups, and of positions, per call. With this number, a call takes about 0.5
 * ms.
 */
const CHANNELS_PER_CALL = 200;
/** Maximum number of calls in flight for long lists. The limit leaves room for other calls. */
const LONG_LISTS_IN_FLIGHT = 2;

type Position = ResumePosition & { readonly place: number };

interface Piece {
  readonly groups: readonly ChannelKey[];
  readonly positions: readonly Position[];
  readonly hasUser: boolean;
}

interface Reading {
  readonly groups: string[];
  readonly streamKeys: ChannelKey[];
  readonly resumeSeqs: ResumeSeqs[];
  isEntered: boolean;
  index: readonly string[];
  commands: readonly InboxCommand[];
}

interface JoinPorts extends Pick<RedisStorePorts, "link" | "clock" | "unreadable"> {
  readonly groupIndex: Pick<GroupIndex, "dropWrong">;
  readonly readInbox: InboxStore["readInbox"];
}

export function createRedisJoinState(ports: JoinPorts): SessionStore["joinState"] {
  const { link, clock, unreadable, groupIndex, readInbox } = ports;
  const { keys, isCluster } = link;
  const longLists = new Semaphore(LONG_LISTS_IN_FLIGHT);

  function piecesFor({ session: { uid }, groups, positions }: JoinRequest): readonly Piece[] {
    const channels = groups.map((id) => channelKey({ id, type: GROUP_CHANNEL }, uid));
    const numbered = positions.map(({ key, lastSeq, lastId }, place) => ({
      key,
      lastSeq,
      lastId,
      place,
    }));
    const groupPieces = channelPieces(link, channels, CHANNELS_PER_CALL);
    const positionPieces = slotsOf(numbered).flatMap((slot) => [
      ...piecesOf(slot, CHANNELS_PER_CALL),
    ]);
    if (isCluster)
      return [
        { groups: [], positions: [], hasUser: true },
        ...groupPieces.map((groups) => ({ groups, positions: [], hasUser: false })),
        ...positionPieces.map((positions) => ({ groups: [], positions, hasUser: false })),
      ];
    const length = Math.max(1, groupPieces.length, positionPieces.length);
    return Array.from({ length }, (_, at) => ({
      groups: groupPieces[at] ?? [],
      positions: positionPieces[at] ?? [],
      hasUser: at === 0,
    }));
  }

  function slotsOf(positions: readonly Position[]): readonly (readonly Position[])[] {
    return isCluster ? [...byBucket(positions).values()] : [positions];
  }

  function byBucket(positions: readonly Position[]): ReadonlyMap<string, readonly Position[]> {
    const buckets = new Map<string, Position[]>();
    for (const position of positions) {
      const tag = keys.ofChannel(position.key);
      const others = buckets.get(tag);
      if (others === undefined) buckets.set(tag, [position]);
      else others.push(position);
    }
    return buckets;
  }

  function packed(positions: readonly Position[]): Arg {
    if (positions.length === 0) return "";
    const items: (string | number)[] = [];
    for (const { key, lastSeq, lastId } of positions)
      items.push(keys.ofChannel(key), key, lastSeq, lastId);
    return packr.pack(items);
  }

  async function read(request: JoinRequest, piece: Piece, into: Reading): Promise<void> {
    const { uid, sessionId } = request.session;
    const { limit, maxBytes } = request.inboxPage;
    const groups = bucketArgs(keys, piece.groups);
    const userKeys = piece.hasUser ? [keys.user("sessions", uid)] : [];
    const userArgs = piece.hasUser ? [sessionId, indexDigest(request.groups)] : ["", ""];
    const reply = await link.run(
      JOIN,
      [
        ...userKeys,
        ...groups.tags,
        ...piece.positions.slice(0, 1).map(({ key }) => keys.ofChannel(key)),
      ],
      [
        ...[uid, ...userArgs, clock(), limit, maxBytes],
        ...[groups.tags.length, ...groups.args, packed(piece.positions)],
      ],
    );
    const [others, active, seqs, isEntered = 0, index, copies = [], streams = []] =
      reply as readonly [
        ...[others: readonly number[], active: readonly number[], seqs: readonly number[]],
        ...[isEntered?: number, index?: readonly Buffer[] | null],
        ...[copies?: readonly Buffer[], streams?: readonly Buffer[]],
      ];
    const excluded = new Set(others);
    for (const [at, key] of groups.ordered.entries())
      if (!excluded.has(at + 1)) into.groups.push(key.slice(GROUP_PREFIX.length));
    for (const position of active) into.streamKeys.push(groups.ordered[position - 1] ?? "");
    for (const [at, { place }] of piece.positions.entries())
      into.resumeSeqs[place] = { headSeq: seqs[at * 2] ?? 0, lastCommonSeq: seqs[at * 2 + 1] ?? 0 };
    if (!piece.hasUser) return;
    into.isEntered = isEntered === 1;
    if (index) into.index = index.map(String);
    into.commands = await commandsOf(request, copies);
    for (const key of streams) into.streamKeys.push(String(key));
  }

  /**
   * Decodes the copies in a reply. Reads further copies if none can be decoded, because an empty
   * page would mean that the inbox has no further copies.
   */
  async function commandsOf(
    { session: { uid }, inboxPage }: JoinRequest,
    reply: readonly Buffer[],
  ): Promise<readonly InboxCommand[]> {
    const copies = copiesOf(reply);
    const readable = unreadable.decodeReadable(copies, commandOf);
    const last = copies.at(-1);
    if (readable.length > 0 || last === undefined) return readable;
    return readInbox(uid, last.inboxSeq, inboxPage);
  }

  return async (request) => {
    const { groups: requested, session } = request;
    const into: Reading = {
      ...{ groups: [], streamKeys: [], resumeSeqs: [] },
      ...{ isEntered: false, index: requested, commands: [] },
    };
    const pieces = piecesFor(request);
    if (pieces.length === 1 && pieces[0] !== undefined) await read(request, pieces[0], into);
    else
      await Promise.all(
        pieces.map((piece) => {
          const call = () => read(request, piece, into);
          // On a Cluster, the calls do not share a limit, because a server that is down must not
          // delay the calls to other servers.
          return isCluster ? call() : longLists.run(call);
        }),
      );
    const { index, ...state } = into;
    const requestedIds = new Set(requested);
    const isAll = index.every((id) => requestedIds.has(id));
    if (isAll && state.groups.length < index.length)
      groupIndex.dropWrong(session.uid, requestedIds, state.groups);
    return { ...state, isAll };
  };
}

const GROUP_PREFIX = `${GROUP_CHANNEL}:`;
