// Reads the state that a session needs to join. The read is one synchronous step, unless the list
// of groups or of positions is long.

import { channelKey, GROUP_CHANNEL } from "../../../broker/model.ts";
import type {
  JoinRequest,
  JoinState,
  ResumePosition,
  ResumeSeqs,
  SessionStore,
} from "../../../broker/ports.ts";
import { andThen, type MaybePromise, together } from "../../../lib/maybe-promise.ts";
import { ifReadable } from "../../../lib/readable.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import type { EmbeddedChannels } from "./channels.ts";
import type { History } from "./history.ts";
import type { Inbox } from "./inbox.ts";
import type { LiveStreams } from "./live-streams.ts";
import type { EmbeddedSessions } from "./sessions.ts";

interface JoinPorts {
  readonly sessions: Pick<EmbeddedSessions, "isEntered">;
  readonly channels: Pick<EmbeddedChannels, "groupsNow">;
  readonly history: Pick<History, "resumeSeqs">;
  readonly inbox: Pick<Inbox, "page">;
  readonly live: Pick<LiveStreams, "activeIn" | "personalOf">;
  readonly onError: (error: Error, what: string) => void;
}

/** Maximum number of positions that are read at once. More positions are read in slices. */
const POSITIONS_AT_ONCE = 100;

export function createJoinState(ports: JoinPorts): SessionStore["joinState"] {
  const { sessions, channels, history, inbox, live, onError } = ports;
  const longLists = new Turns();

  const readable = <Result>(read: () => Result) =>
    ifReadable(read, "Could not read the message or channel from which a client resumes", onError);

  function resumeSeqsOf(positions: readonly ResumePosition[]): MaybePromise<readonly ResumeSeqs[]> {
    // If a message cannot be read, ids are not compared. If the channel cannot be read, the channel
    // is reported as up to date.
    const seqsOf = ({ key, lastSeq, lastId }: ResumePosition) =>
      readable(() => history.resumeSeqs(key, lastSeq, lastId)) ??
      readable(() => history.resumeSeqs(key, lastSeq, 0)) ?? {
        headSeq: lastSeq,
        lastCommonSeq: lastSeq,
      };
    if (positions.length <= POSITIONS_AT_ONCE) return positions.map(seqsOf);
    return new TimeSlice(undefined, longLists).each(positions, async (at) => seqsOf(at));
  }

  function streamKeysOf({ session: { uid }, groups }: JoinRequest): JoinState["streamKeys"] {
    const keys = groups
      .map((id) => channelKey({ id, type: GROUP_CHANNEL }, uid))
      .filter((key) => live.activeIn(key).length > 0);
    for (const stream of live.personalOf(uid)) if (stream.isShownActive) keys.push(stream.head.key);
    return keys;
  }

  return (request) => {
    const { session, groups: requested, positions, inboxPage } = request;
    const { uid } = session;
    return andThen(together([channels.groupsNow(uid), resumeSeqsOf(positions)]), (lists) => {
      const [current, resumeSeqs] = lists;
      return {
        isEntered: sessions.isEntered(session),
        ...among(requested, current),
        resumeSeqs,
        commands: inbox.page(uid, 0, inboxPage),
        streamKeys: streamKeysOf(request),
      };
    });
  };
}

function among(
  requested: readonly string[],
  current: readonly string[],
): Pick<JoinState, "groups" | "isAll"> {
  // This is the usual case, because the login returned the cached list itself.
  if (requested === current) return { groups: requested, isAll: true };
  const own = new Set(current);
  const groups = requested.filter((id) => own.has(id));
  return { groups, isAll: groups.length === own.size };
}
