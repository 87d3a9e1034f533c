// The call that reads a stream: as it stands, or event by event until its end. State: the open feeds.

import type { StreamFollowers } from "../broker/stream-followers.ts";
import type { Streams } from "../broker/streams.ts";
import { Feeds, type MayStay } from "./feeds.ts";
import { jsonReply, NOTHING_REPLY } from "./reply.ts";
import type { Answered } from "./route.ts";
import { streamReplyJson } from "./stream-json.ts";
import type { StreamRequest } from "./stream-request.ts";

export interface StreamReadParts {
  readonly streams: Pick<Streams, "read">;
  readonly followers: Pick<StreamFollowers, "follow">;
  /** How often a quiet feed says something, and its reader's right is looked at in any case. Absent: 15 s. */
  readonly keepAliveMs?: number;
}

export interface StreamCalls {
  /** `mayStay`: see Feeds; of a viewer it is also asked as soon as its right may have changed. */
  read(asked: StreamRequest, mayStay: MayStay): Promise<Answered>;
}

export function createStreamCalls(parts: StreamReadParts): StreamCalls {
  const { streams, followers } = parts;
  const feeds = new Feeds(parts.keepAliveMs);
  return {
    async read(asked, mayStay) {
      const { channel, uid, clientMsgNo, fromIndex, follows } = asked;
      const view = { channel, uid };
      const stream = await streams.read(view, clientMsgNo);
      if (!follows) return jsonReply(JSON.stringify(streamReplyJson(stream)));
      // Tells a browser's EventSource that comes back after the end to stay away.
      if (stream.state !== "active" && fromIndex === stream.nextIndex)
        return NOTHING_REPLY;
      const viewer = asked.viewer && { uid: asked.viewer.uid, mayStay };
      const target = { view, clientMsgNo, fromIndex, viewer };
      return feeds.open((sink) => followers.follow(target, sink), mayStay);
    },
  };
}
