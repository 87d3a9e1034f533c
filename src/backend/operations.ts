// Generated from the OpenAPI document by `npm run config:docs`. Do not edit.

/** A user's token for a device type */
export type UserTokenRequest = {
  /** User id */
  readonly uid: string;
  /** Token with which the user's client will connect */
  readonly token: string;
  /** Type of the device: 0 app, 1 web, 2 desktop */
  readonly device_flag: DeviceFlag;
  /** 0 or absent: secondary device. 1: main device. A user has at most one session on main devices of this type */
  readonly device_level?: DeviceLevel | undefined;
};

/** One of 0 (app), 1 (web), 2 (desktop) */
export type DeviceFlag = 0 | 1 | 2;

/** One of 0 (secondary), 1 (main) */
export type DeviceLevel = 0 | 1;

/** Reply to a call that succeeded */
export type Status = {
  /** ok, or ready in a reply to GET /readyz */
  readonly status: string;
};

/** Devices to log out */
export type DeviceQuitRequest = {
  /** User id */
  readonly uid: string;
  /** 0 app, 1 web, 2 desktop, -1 all of them */
  readonly device_flag: DevicesToQuit;
};

/** One of -1 (all), 0 (app), 1 (web), 2 (desktop) */
export type DevicesToQuit = -1 | 0 | 1 | 2;

/** Users to look up */
export type OnlineStatusRequest = readonly string[];

/** One record for each uid, in the order of the request */
export type OnlineStatusList = readonly {
  /** User id */
  readonly uid: string;
  /** 1: the user has a session */
  readonly online: Flag;
  /** Lowest device type among the user's main sessions, or among all sessions if none is a main session; 0 if the user is offline */
  readonly device_flag: DeviceFlag;
}[];

/** One of 0 (off), 1 (on) */
export type Flag = 0 | 1;

/** Registered device types and live sessions of a user */
export type Devices = {
  /** Registered device types */
  readonly devices: readonly {
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Level of the device, registered with its token */
    readonly device_level: DeviceLevel;
    /** 0: the device was logged out */
    readonly has_token: Flag;
  }[];
  /** Live sessions on any node */
  readonly sessions: readonly {
    /** Session id */
    readonly session_id: string;
    /** Node that serves the session */
    readonly node_id: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Level of the device in this session */
    readonly device_level: DeviceLevel;
    /** Id of the device, chosen by the client */
    readonly device_id: string;
  }[];
};

/** Uids in ascending order */
export type SystemUidList = readonly string[];

/** System accounts to add or remove */
export type SystemUidsRequest = {
  /** User ids of the accounts */
  readonly uids: readonly string[];
};

/** Channel to create */
export type ChannelRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** 1: only the system and system accounts may send to the group, or to the owner of the personal channel */
  readonly ban?: Flag | undefined;
  /** 1: disbands the channel permanently */
  readonly disband?: Flag | undefined;
  /** 1: no member may send. For a personal channel: its owner may not send, only receive */
  readonly send_ban?: Flag | undefined;
  /** 1: strangers may send to the owner. Only for personal channels */
  readonly allow_stranger?: Flag | undefined;
  /** 1: a super-large group, for which no per-member state (such as unread counts) is kept */
  readonly large?: Flag | undefined;
  /** 1: clients may send events to the group, or to the owner of the personal channel. Default at creation: 0 if large is 1, otherwise 1 */
  readonly client_events?: Flag | undefined;
  /** Initial subscribers */
  readonly subscribers?: readonly string[] | undefined;
};

/** One of 1 (personal), 2 (group) */
export type ChannelType = 1 | 2;

/** Flags to change */
export type ChannelInfoRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** 1: only the system and system accounts may send to the group, or to the owner of the personal channel */
  readonly ban?: Flag | undefined;
  /** 1: disbands the channel permanently */
  readonly disband?: Flag | undefined;
  /** 1: no member may send. For a personal channel: its owner may not send, only receive */
  readonly send_ban?: Flag | undefined;
  /** 1: strangers may send to the owner. Only for personal channels */
  readonly allow_stranger?: Flag | undefined;
  /** 1: a super-large group, for which no per-member state (such as unread counts) is kept */
  readonly large?: Flag | undefined;
  /** 1: clients may send events to the group, or to the owner of the personal channel. Default at creation: 0 if large is 1, otherwise 1 */
  readonly client_events?: Flag | undefined;
};

/** Subscribers to add */
export type SubscriberAddRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type?: ChannelType | undefined;
  /** Users to add. May be empty only if reset is 1 */
  readonly subscribers: readonly string[];
  /** 1: these subscribers replace the existing ones */
  readonly reset?: Flag | undefined;
  /** 1: the users become temporary subscribers */
  readonly temp_subscriber?: Flag | undefined;
};

/** Subscribers to remove */
export type SubscriberRemoveRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Users to remove. If one of them is not a subscriber, nobody is removed */
  readonly subscribers: readonly string[];
  /** Kind of membership to remove: 0 permanent, 1 temporary */
  readonly temp_subscriber?: Flag | undefined;
};

/** A channel */
export type ChannelTarget = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
};

/** Users to add to a channel's blacklist or whitelist, or to remove from it */
export type ListRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Users to add or remove */
  readonly uids: readonly string[];
};

/** New content of a channel's blacklist or whitelist */
export type ListSetRequest = {
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** The new list. An empty list removes all users */
  readonly uids: readonly string[];
};

/** Flags and user counts of a channel */
export type ChannelState = {
  /** Channel id */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** 1: only the system and system accounts may send to the group, or to the owner of the personal channel */
  readonly ban: Flag;
  /** 1: the channel is disbanded */
  readonly disband: Flag;
  /** 1: no member may send. For a personal channel: its owner may not send */
  readonly send_ban: Flag;
  /** 1: strangers may send to the owner of the personal channel */
  readonly allow_stranger: Flag;
  /** 1: a super-large group, for which no per-member state is kept */
  readonly large: Flag;
  /** 1: clients may send events to the channel */
  readonly client_events: Flag;
  /** Number of permanent and temporary subscribers */
  readonly subscriber_count: number;
  /** Number of users on the blacklist */
  readonly blacklist_count: number;
  /** Number of users on the whitelist */
  readonly whitelist_count: number;
  /** Sequence number of a group's newest message; 0 for a personal channel or a group without messages */
  readonly last_message_seq: number;
};

/** One page of a list of users */
export type UidPage = {
  /** Users on this page, in ascending order */
  readonly uids: readonly string[];
  /** Cursor of the next page; empty if this is the last page */
  readonly cursor: string;
};

/** Users on the whitelist, in ascending order */
export type Whitelist = readonly {
  /** User id */
  readonly uid: string;
}[];

/** Read positions of members, and whether each of them has read the message */
export type Readers = {
  /** Members on this page */
  readonly readers: readonly {
    /** User id */
    readonly uid: string;
    /** Sequence number up to which the user has read the channel */
    readonly read_seq: number;
    /** 1: the user has read the message, or a later one */
    readonly has_read: Flag;
  }[];
  /** Cursor of the next page, empty on the last page */
  readonly cursor: string;
};

/** Channels that received the most messages and events. A channel that receives less than a thousandth of all messages and events may be missing */
export type BusiestChannels = {
  /** Node that replies. Only messages and events that were sent through this node are counted */
  readonly node_id: string;
  /** Seconds over which messages and events were counted */
  readonly window_s: number;
  /** Channels, busiest first */
  readonly channels: readonly {
    /** Channel id; for a personal channel, one of its two users */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** The other user of a personal channel. Absent for a group */
    readonly uid?: string | undefined;
    /** Number of accepted messages, without retries */
    readonly messages: number;
    /** Number of accepted events, including stream events */
    readonly events: number;
  }[];
};

/** One page of a user's groups */
export type ChannelPage = {
  /** Groups on this page, in ascending order of their ids */
  readonly channels: readonly {
    /** Channel id */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }[];
  /** Cursor of the next page; empty if this is the last page */
  readonly cursor: string;
};

/** Message to send */
export type SendRequest = {
  /** Standard base64 of the JSON content */
  readonly payload: string;
  /** Sender */
  readonly from_uid: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Flags of the message. Absent flags are 0 */
  readonly header?:
    | {
        /** 1: the message is not stored */
        readonly no_persist?: Flag | undefined;
        /** 1: the message counts as unread */
        readonly red_dot?: Flag | undefined;
        /** 1: the message is a command; each recipient gets a copy in their inbox */
        readonly sync_once?: Flag | undefined;
      }
    | undefined;
  /** Identifies the message for deduplication: a retry must have the same payload. If empty or absent, the server creates a value */
  readonly client_msg_no?: string | undefined;
  /** client_msg_no of the stream to which the message belongs */
  readonly stream_no?: string | undefined;
  /** Seconds until the message expires. 0 or absent means that the message never expires */
  readonly expire?: number | undefined;
  /** Restricts the recipients to these users. Only for commands. An empty list means no restriction */
  readonly subscribers?: readonly string[] | undefined;
  /** Label stored with the message */
  readonly tag_key?: string | undefined;
};

/** Ids of the message. A retry gets the ids of the first message */
export type SentMessage = {
  /** Id of the message, unique in the cluster */
  readonly message_id: number;
  /** Sequence number of the message in the channel; 0 for a command and for a message that was not stored */
  readonly message_seq: number;
  /** client_msg_no of the request, or the one that the server created */
  readonly client_msg_no: string;
  /** 1: the request was a retry, and the ids are those of the first message. Absent means 0 */
  readonly repeated?: Flag | undefined;
};

/** Message to send, and its recipients */
export type SendBatchRequest = {
  /** Standard base64 of the JSON content */
  readonly payload: string;
  /** Sender */
  readonly from_uid: string;
  /** Users who receive the message, each as a personal message. An invalid uid is returned in fail_uids */
  readonly subscribers: readonly string[];
  /** Flags of the message. Absent flags are 0 */
  readonly header?:
    | {
        /** 1: the message is not stored */
        readonly no_persist?: Flag | undefined;
        /** 1: the message counts as unread */
        readonly red_dot?: Flag | undefined;
        /** 1: the message is a command; each recipient gets a copy in their inbox */
        readonly sync_once?: Flag | undefined;
      }
    | undefined;
  /** Identifies the call for deduplication: a retry must have the same payload, and sends the message only to users to whom it has not been sent yet. Each message has a client_msg_no that is derived from this value and the uid of the recipient. If empty or absent, a retry sends all messages again */
  readonly client_msg_no?: string | undefined;
};

/** Users to whom the message was not sent, with the reasons */
export type SentBatch = {
  /** Users to whom the message was not sent */
  readonly fail_uids: readonly string[];
  /** Reason for each user in fail_uids, in the same order */
  readonly reason: readonly string[];
};

/** A range of a channel's history */
export type History = {
  /** Messages in the requested order */
  readonly messages: readonly Message[];
  /** Sequence number of the newest message of the channel */
  readonly head_seq: number;
  /** 1: the range contains more messages than were returned */
  readonly more: Flag;
};

/** A stored message */
export type Message = {
  /** Id of the message, unique in the cluster */
  readonly message_id: number;
  /** The same id as a string */
  readonly message_idstr: string;
  /** Id of an imported message on its old server */
  readonly source_id?: string | undefined;
  /** Sequence number of the message in the channel */
  readonly message_seq: number;
  /** client_msg_no of the message */
  readonly client_msg_no: string;
  /** Sender */
  readonly from_uid: string;
  /** Channel id */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Time of the message in Unix seconds */
  readonly timestamp: number;
  /** Time of the message in Unix milliseconds */
  readonly timestamp_ms: number;
  /** Flags of the message */
  readonly header: {
    /** 1: the message is not stored */
    readonly no_persist: Flag;
    /** 1: the message counts as unread */
    readonly red_dot: Flag;
    /** 1: the message is a command */
    readonly sync_once: Flag;
  };
  /** Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires */
  readonly expire: number;
  /** client_msg_no of the stream to which the message belongs; empty if none */
  readonly stream_no: string;
  /** Label of the message; empty if it has none */
  readonly tag_key: string;
  /** Setting bits that a WKProto client sent with the message */
  readonly setting?: number | undefined;
  /** Topic that a WKProto client sent with the message */
  readonly topic?: string | undefined;
  /** Content of the message in base64 */
  readonly payload: string;
  /** Stream of the message, if it has one */
  readonly stream?:
    | {
        /** State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout */
        readonly state: StreamState;
        /** Text of the stream so far */
        readonly text: string;
        /** Index of the next event of the stream */
        readonly next_index: number;
        /** Data of the start event */
        readonly start_data: string;
        /** Data of the end event; null while the stream is active */
        readonly end_data: string | null;
        /** Tool calls and custom events of the stream */
        readonly events: readonly {
          /** Index of the event in the stream */
          readonly index: number;
          /** Length of the text before the event, in UTF-16 code units */
          readonly text_offset: number;
          /** Id of the event */
          readonly id: string;
          /** Type of the event */
          readonly type: string;
          /** Data of the event */
          readonly data: string;
          /** Time of the event in Unix milliseconds */
          readonly timestamp: number;
        }[];
        /** Present if the stream is too long to be shown completely. `text` is then its beginning, `events` has one event that stands for all events that are not shown, and the whole stream can be read at `log` */
        readonly truncated?: 1 | undefined;
        /** Path at which the records of the stream can be read */
        readonly log: string;
      }
    | undefined;
};

/** One of active, closed, cancelled, interrupted */
export type StreamState = "active" | "closed" | "cancelled" | "interrupted";

/** Event to send */
export type EventRequest = {
  /** Identifies the stream or message. All events of a stream have the same value */
  readonly client_msg_no: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Sender. Empty or absent means the system */
  readonly from_uid?: string | undefined;
  /** Seconds from the start of a stream until its message expires. Ignored unless the event is a start event. 0 or absent means that the message never expires */
  readonly expire?: number | undefined;
  /** The event */
  readonly event: {
    /** ___TextMessageStart, ___TextMessageContent, ___TextMessageEnd, ___ToolCallStart, ___ToolCallArgs, ___ToolCallEnd, ___ToolCallResult, or a custom type that does not begin with ___ */
    readonly type: string;
    /** Data of the event. Its format depends on the type. Absent means the empty string */
    readonly data?: string | undefined;
    /** Time of the event in Unix milliseconds. Absent means the time at which the event is accepted */
    readonly timestamp?: number | undefined;
    /** Id of the event, chosen by the caller. An event that repeats the id, type, data and timestamp of an earlier event of the stream is a retry and has no effect, unless the id equals client_msg_no or different events have used it. If empty or absent, the server creates an id */
    readonly id?: string | undefined;
  };
};

/** Reply to an event that was accepted */
export type EventResult = {
  /** Always ok */
  readonly status: string;
  /** Stream of the event, with its state after the event */
  readonly stream?:
    | {
        /** State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout */
        readonly state: StreamState;
      }
    | undefined;
};

/** Stream to cancel */
export type CancelRequest = {
  /** Identifies the stream or message. All events of a stream have the same value */
  readonly client_msg_no: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** User who cancels. For a personal channel, this must be one of its two users. For a group, empty or absent means the system */
  readonly uid?: string | undefined;
};

/** Page of the event feed */
export type Events = {
  /** Events in the order of the feed */
  readonly events: readonly FeedEvent[];
  /** Cursor after the last event, for the `after` parameter of the next call */
  readonly cursor: string;
  /** 1: the next page may already have events */
  readonly more: number;
};

/** Event of the feed */
export type FeedEvent =
  | MessageStoredEvent
  | ChannelCreatedEvent
  | ChannelUpdatedEvent
  | ChannelDeletedEvent
  | ChannelMembersAddedEvent
  | ChannelMembersRemovedEvent
  | StreamEndedEvent
  | UserTokenChangedEvent
  | SessionKickedEvent
  | MessageUnreachedEvent
  | UserOnlineEvent
  | UserOfflineEvent
  | SessionOpenedEvent
  | SessionClosedEvent
  | CommandSentEvent
  | CommandExpiredEvent
  | FeedGapEvent;

/** Written when a message was stored */
export type MessageStoredEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "message.stored";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data:
    | {
        /** Id of the message, unique in the cluster */
        readonly message_id: number;
        /** The same id as a string */
        readonly message_idstr: string;
        /** Id of an imported message on its old server */
        readonly source_id?: string | undefined;
        /** Sequence number of the message in the channel */
        readonly message_seq: number;
        /** client_msg_no of the message */
        readonly client_msg_no: string;
        /** Sender */
        readonly from_uid: string;
        /** Channel id */
        readonly channel_id: string;
        /** 1 personal channel, 2 group channel */
        readonly channel_type: ChannelType;
        /** Time of the message in Unix seconds */
        readonly timestamp: number;
        /** Time of the message in Unix milliseconds */
        readonly timestamp_ms: number;
        /** Flags of the message */
        readonly header: {
          /** 1: the message is not stored */
          readonly no_persist: Flag;
          /** 1: the message counts as unread */
          readonly red_dot: Flag;
          /** 1: the message is a command */
          readonly sync_once: Flag;
        };
        /** Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires */
        readonly expire: number;
        /** client_msg_no of the stream to which the message belongs; empty if none */
        readonly stream_no: string;
        /** Label of the message; empty if it has none */
        readonly tag_key: string;
        /** Setting bits that a WKProto client sent with the message */
        readonly setting?: number | undefined;
        /** Topic that a WKProto client sent with the message */
        readonly topic?: string | undefined;
        /** Content of the message in base64 */
        readonly payload: string;
        /** Present if the message has a stream. The event `stream.ended` contains the text of the stream */
        readonly stream?:
          | {
              /** The message has begun the stream */
              readonly state: "active";
            }
          | undefined;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      }
    | {
        /** Id of the message */
        readonly message_id: number;
        /** The same id as a string */
        readonly message_idstr: string;
        /** Sequence number of the message */
        readonly message_seq: number;
        /** 1: the message has expired or was removed */
        readonly gone: 1;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      };
};

/** Written when a channel was created */
export type ChannelCreatedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "channel.created";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** 1: only the system and system accounts may send */
    readonly ban: Flag;
    /** 1: the channel is disbanded */
    readonly disband: Flag;
    /** 1: no member may send. For a personal channel: its owner may not send */
    readonly send_ban: Flag;
    /** 1: strangers may send to the user */
    readonly allow_stranger: Flag;
    /** 1: a super-large group */
    readonly large: Flag;
    /** 1: clients may send events to the channel */
    readonly client_events: Flag;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when flags of a channel changed. `data` contains the changed flags */
export type ChannelUpdatedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "channel.updated";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** 1: only the system and system accounts may send */
    readonly ban?: Flag | undefined;
    /** 1: the channel is disbanded */
    readonly disband?: Flag | undefined;
    /** 1: no member may send. For a personal channel: its owner may not send */
    readonly send_ban?: Flag | undefined;
    /** 1: strangers may send to the user */
    readonly allow_stranger?: Flag | undefined;
    /** 1: a super-large group */
    readonly large?: Flag | undefined;
    /** 1: clients may send events to the channel */
    readonly client_events?: Flag | undefined;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when a channel was disbanded. `data` contains the changed flags */
export type ChannelDeletedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "channel.deleted";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** 1: only the system and system accounts may send */
    readonly ban?: Flag | undefined;
    /** 1: the channel is disbanded */
    readonly disband: Flag;
    /** 1: no member may send. For a personal channel: its owner may not send */
    readonly send_ban?: Flag | undefined;
    /** 1: strangers may send to the user */
    readonly allow_stranger?: Flag | undefined;
    /** 1: a super-large group */
    readonly large?: Flag | undefined;
    /** 1: clients may send events to the channel */
    readonly client_events?: Flag | undefined;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when users became members. A call with more than 500 users produces several events */
export type ChannelMembersAddedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "channel.members_added";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** Ids of the users whom the event concerns */
    readonly uids: readonly string[];
    /** 1: temporary members */
    readonly temp_subscriber: Flag;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when users lost their permanent or temporary membership. A call with more than 500 users produces several events */
export type ChannelMembersRemovedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "channel.members_removed";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** Ids of the users whom the event concerns */
    readonly uids: readonly string[];
    /** 1: temporary members */
    readonly temp_subscriber: Flag;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when a stream ended. `text` has at most 64 KiB, and `truncated` is 1 if the stream has more */
export type StreamEndedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "stream.ended";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data:
    | {
        /** Channel id. If the event concerns the flags or lists of one user (channel_type 1), the uid of that user */
        readonly channel_id: string;
        /** 1 personal channel, 2 group channel */
        readonly channel_type: ChannelType;
        /** client_msg_no of the stream */
        readonly client_msg_no: string;
        /** Sequence number of the stream's message */
        readonly message_seq: number;
        /** How the stream ended. `closed`: by its producer. `cancelled`: by a viewer, its producer or the forced start of another stream. `interrupted`: its producer sent no event for longer than the idle timeout */
        readonly state: "closed" | "cancelled" | "interrupted";
        /** Text of the stream */
        readonly text: string;
        /** 1: the stream has more text than `text` */
        readonly truncated: Flag;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      }
    | {
        /** client_msg_no of the stream */
        readonly client_msg_no: string;
        /** Sequence number of the stream's message */
        readonly message_seq: number;
        /** How the stream ended. `closed`: by its producer. `cancelled`: by a viewer, its producer or the forced start of another stream. `interrupted`: its producer sent no event for longer than the idle timeout */
        readonly state: "closed" | "cancelled" | "interrupted";
        /** 1: the message has expired or was removed */
        readonly gone: 1;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      };
};

/** Written when the token or the level of a device was set or changed, or the device was logged out */
export type UserTokenChangedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "user.token_changed";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Level of the device */
    readonly device_level: DeviceLevel;
  };
};

/** Written when the server ended a user's session with the reason `kicked`, `token_changed`, `logged_out` or `banned` */
export type SessionKickedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "session.kicked";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Id of the device, chosen by the client */
    readonly device_id: string;
    /** Reason why the session was ended: `kicked`, `token_changed`, `logged_out` or `banned` */
    readonly reason: string;
  };
};

/** Written when users needed a push for a message, while `push.enabled` is true (docs/push.md). A message with more than 500 such users produces several events */
export type MessageUnreachedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "message.unreached";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data:
    | {
        /** Id of the message, unique in the cluster */
        readonly message_id: number;
        /** The same id as a string */
        readonly message_idstr: string;
        /** Id of an imported message on its old server */
        readonly source_id?: string | undefined;
        /** Sequence number of the message in the channel */
        readonly message_seq: number;
        /** client_msg_no of the message */
        readonly client_msg_no: string;
        /** Sender */
        readonly from_uid: string;
        /** Channel id */
        readonly channel_id: string;
        /** 1 personal channel, 2 group channel */
        readonly channel_type: ChannelType;
        /** Time of the message in Unix seconds */
        readonly timestamp: number;
        /** Time of the message in Unix milliseconds */
        readonly timestamp_ms: number;
        /** Flags of the message */
        readonly header: {
          /** 1: the message is not stored */
          readonly no_persist: Flag;
          /** 1: the message counts as unread */
          readonly red_dot: Flag;
          /** 1: the message is a command */
          readonly sync_once: Flag;
        };
        /** Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires */
        readonly expire: number;
        /** client_msg_no of the stream to which the message belongs; empty if none */
        readonly stream_no: string;
        /** Label of the message; empty if it has none */
        readonly tag_key: string;
        /** Setting bits that a WKProto client sent with the message */
        readonly setting?: number | undefined;
        /** Topic that a WKProto client sent with the message */
        readonly topic?: string | undefined;
        /** Content of the message in base64 */
        readonly payload: string;
        /** Present if the message has a stream. The event `stream.ended` contains the text of the stream */
        readonly stream?:
          | {
              /** The message has begun the stream */
              readonly state: "active";
            }
          | undefined;
        /** Ids of the users whom the event concerns */
        readonly uids: readonly string[];
        /** Position of this event among the `message.unreached` events about the message, starting at 1 */
        readonly page: number;
        /** Number of `message.unreached` events about the message */
        readonly pages: number;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      }
    | {
        /** Id of the message */
        readonly message_id: number;
        /** The same id as a string */
        readonly message_idstr: string;
        /** Sequence number of the message */
        readonly message_seq: number;
        /** 1: the message has expired or was removed */
        readonly gone: 1;
        /** Ids of the users whom the event concerns */
        readonly uids: readonly string[];
        /** Position of this event among the `message.unreached` events about the message, starting at 1 */
        readonly page: number;
        /** Number of `message.unreached` events about the message */
        readonly pages: number;
        /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
        readonly channel_key: string;
      };
};

/** Written when a user who was offline has logged in */
export type UserOnlineEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "user.online";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device that logged in */
    readonly device_flag: DeviceFlag;
  };
};

/** Written when a user who was online has had no session for `events.presenceDelayMs` */
export type UserOfflineEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "user.offline";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device whose session ended last */
    readonly device_flag: DeviceFlag;
  };
};

/** Written when a user's session has begun, but only while an enabled webhook or a reader requests events of this type */
export type SessionOpenedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "session.opened";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Id of the device, chosen by the client */
    readonly device_id: string;
    /** Id of the session as a number, as in /connz */
    readonly conn_id: number;
    /** Number of the user's sessions on devices of this type after this session began or ended */
    readonly device_online_count: number;
    /** Total number of the user's sessions after this session began or ended */
    readonly total_online_count: number;
  };
};

/** Written when a user's session has ended, but only while an enabled webhook or a reader requests events of this type */
export type SessionClosedEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "session.closed";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Id of the device, chosen by the client */
    readonly device_id: string;
    /** Id of the session as a number, as in /connz */
    readonly conn_id: number;
    /** Number of the user's sessions on devices of this type after this session began or ended */
    readonly device_online_count: number;
    /** Total number of the user's sessions after this session began or ended */
    readonly total_online_count: number;
    /** Reason why the session was ended, such as `kicked`. Absent if only its connection ended, for example because the client closed it */
    readonly reason?: string | undefined;
  };
};

/** Written when a command was sent, but only while an enabled webhook or a reader requests events of this type */
export type CommandSentEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "command.sent";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Id of the message, unique in the cluster */
    readonly message_id: number;
    /** The same id as a string */
    readonly message_idstr: string;
    /** Id of an imported message on its old server */
    readonly source_id?: string | undefined;
    /** Sequence number of the message in the channel */
    readonly message_seq: number;
    /** client_msg_no of the message */
    readonly client_msg_no: string;
    /** Sender */
    readonly from_uid: string;
    /** Channel id */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** Time of the message in Unix seconds */
    readonly timestamp: number;
    /** Time of the message in Unix milliseconds */
    readonly timestamp_ms: number;
    /** Flags of the message */
    readonly header: {
      /** 1: the message is not stored */
      readonly no_persist: Flag;
      /** 1: the message counts as unread */
      readonly red_dot: Flag;
      /** 1: the message is a command */
      readonly sync_once: Flag;
    };
    /** Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires */
    readonly expire: number;
    /** client_msg_no of the stream to which the message belongs; empty if none */
    readonly stream_no: string;
    /** Label of the message; empty if it has none */
    readonly tag_key: string;
    /** Setting bits that a WKProto client sent with the message */
    readonly setting?: number | undefined;
    /** Topic that a WKProto client sent with the message */
    readonly topic?: string | undefined;
    /** Content of the message in base64 */
    readonly payload: string;
    /** Stream of the message, if it has one */
    readonly stream?:
      | {
          /** State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout */
          readonly state: StreamState;
          /** Text of the stream so far */
          readonly text: string;
          /** Index of the next event of the stream */
          readonly next_index: number;
          /** Data of the start event */
          readonly start_data: string;
          /** Data of the end event; null while the stream is active */
          readonly end_data: string | null;
          /** Tool calls and custom events of the stream */
          readonly events: readonly {
            /** Index of the event in the stream */
            readonly index: number;
            /** Length of the text before the event, in UTF-16 code units */
            readonly text_offset: number;
            /** Id of the event */
            readonly id: string;
            /** Type of the event */
            readonly type: string;
            /** Data of the event */
            readonly data: string;
            /** Time of the event in Unix milliseconds */
            readonly timestamp: number;
          }[];
          /** Present if the stream is too long to be shown completely. `text` is then its beginning, `events` has one event that stands for all events that are not shown, and the whole stream can be read at `log` */
          readonly truncated?: 1 | undefined;
          /** Path at which the records of the stream can be read */
          readonly log: string;
        }
      | undefined;
    /** Channel to which the event belongs: `2:<group>`, `1:<uid>@<uid>`, or `1:<uid>` for a user's channel record */
    readonly channel_key: string;
  };
};

/** Written when commands have expired in the inbox of a user who had not acknowledged them. More than 500 commands are split over several events */
export type CommandExpiredEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "command.expired";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** User id */
    readonly uid: string;
    /** Ids of the expired commands */
    readonly command_ids: readonly number[];
  };
};

/** Written when a reader or a webhook reaches a position at which the feed has lost events */
export type FeedGapEvent = {
  /** Unique id of the event */
  readonly id: string;
  /** Type of the event */
  readonly type: "feed.gap";
  /** Time of the event, RFC 3339 in UTC */
  readonly timestamp: string;
  /** Fields of the event */
  readonly data: {
    /** Number of the first lost event in its partition */
    readonly from: number;
    /** Number of the last lost event */
    readonly to: number;
    /** Number of lost events */
    readonly count: number;
    /** Types that the lost events may have. Absent if they may have any type */
    readonly types?: readonly string[] | undefined;
  };
};

/** State to set */
export type FeedRequest = {
  /** on: the store writes events */
  readonly feed: "on" | "off";
};

/** State of the event feed */
export type Feed = {
  /** on if the store writes events, otherwise off */
  readonly feed: string;
  /** Cursor after the newest event. If feed is on, every later change has an event after this cursor */
  readonly cursor: string;
};

/** State of a stream */
export type Stream = {
  /** State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout */
  readonly state: StreamState;
  /** Text of the stream so far */
  readonly text: string;
  /** Index of the next event of the stream */
  readonly next_index: number;
  /** Data of the start event */
  readonly start_data: string;
  /** Data of the end event; null while the stream is active */
  readonly end_data: string | null;
  /** Tool calls and custom events of the stream */
  readonly events: readonly {
    /** Index of the event in the stream */
    readonly index: number;
    /** Length of the text before the event, in UTF-16 code units */
    readonly text_offset: number;
    /** Id of the event */
    readonly id: string;
    /** Type of the event */
    readonly type: string;
    /** Data of the event */
    readonly data: string;
    /** Time of the event in Unix milliseconds */
    readonly timestamp: number;
  }[];
  /** Present if the stream is too long to be shown completely. `text` is then its beginning, `events` has one event that stands for all events that are not shown, and the whole stream can be read at `log` */
  readonly truncated?: 1 | undefined;
  /** Path at which the records of the stream can be read */
  readonly log: string;
  /** client_msg_no of the stream */
  readonly client_msg_no: string;
  /** Sender of the stream */
  readonly from_uid: string;
  /** Id of the stream's message */
  readonly message_id: number;
  /** Sequence number of the stream's message in the channel */
  readonly message_seq: number;
};

/** Stream to which the URL gives access, and what the bearer of the URL may do */
export type SignedUrlRequest = {
  /** Path of one stream, as in its URL */
  readonly path: string;
  /** read allows GET and HEAD. write also allows PUT and POST. No URL allows DELETE */
  readonly access: "read" | "write";
  /** Seconds after which the URL is no longer valid */
  readonly expires_in: number;
  /** User in whose name the bearer of the URL writes to a channel */
  readonly from_uid?: string | undefined;
};

/** A URL whose bearer needs no other credential */
export type SignedUrl = {
  /** The URL, with the origin of the request. Any other origin at which this cluster can be reached also works */
  readonly url: string;
  /** Time at which the URL expires, in Unix seconds */
  readonly expires_at: number;
};

/** Result of rotating the signing key */
export type KeyRotation = {
  /** Always ok */
  readonly status: "ok";
  /** Latest time at which a URL signed with an earlier key expires, in Unix seconds */
  readonly earlier_valid_until: number;
};

/** A webhook to create */
export type WebhookRequest = {
  /** Absolute URL that receives the events */
  readonly url: string;
  /** Event types. A name with * at the end selects all types that begin with the text before it. A plain * does not select session.opened, session.closed or command.sent; select them by their full names, or with session.* or command.* */
  readonly types?: readonly string[] | undefined;
  /** Channels whose events are delivered. This filter does not affect events without a channel */
  readonly channels?:
    | {
        /** 1 personal channel, 2 group channel */
        readonly type?: ChannelType | undefined;
        /** Prefix of the channel id. A personal channel matches if the uid of either user begins with it */
        readonly prefix?: string | undefined;
      }
    | undefined;
  /** Format of the request bodies */
  readonly format?: WebhookFormat | undefined;
  /** Maximum number of events in a request, and maximum time for which an event waits for further events */
  readonly batch?:
    | {
        /** Maximum number of events in a request. With 1, the event itself is the body */
        readonly max?: number | undefined;
        /** Maximum time for which an event waits for further events, in milliseconds */
        readonly waitMs?: number | undefined;
      }
    | undefined;
  /** channel: events of a channel arrive in order. none: a request that is being retried does not delay later requests, unless four requests of a feed partition are being retried */
  readonly order?: WebhookOrder | undefined;
  /** 0: nothing is delivered until enabled is 1 again */
  readonly enabled?: Flag | undefined;
  /** Maximum number of seconds for which a failing request is repeated. If it still fails after this time, the webhook is disabled */
  readonly maxAgeS?: number | undefined;
};

/** One of standard, wukongim, cloudevents */
export type WebhookFormat = "standard" | "wukongim" | "cloudevents";

/** One of channel, none */
export type WebhookOrder = "channel" | "none";

/** Id and secret of a new webhook */
export type CreatedWebhook = {
  /** Id of the webhook */
  readonly id: string;
  /** Secret with which the requests are signed. It is not shown again */
  readonly secret: string;
};

/** All webhooks */
export type WebhookList = {
  /** Webhooks, ordered by id */
  readonly webhooks: readonly Webhook[];
};

/** A webhook, without its secrets */
export type Webhook = {
  /** Id of the webhook */
  readonly id: string;
  /** URL that receives the events */
  readonly url: string;
  /** Event types. A name with * at the end selects all types that begin with the text before it. A plain * does not select session.opened, session.closed or command.sent; select them by their full names, or with session.* or command.* */
  readonly types: readonly string[];
  /** Channels whose events are delivered. This filter does not affect events without a channel */
  readonly channels: {
    /** 1 personal channel, 2 group channel */
    readonly type?: ChannelType | undefined;
    /** Prefix of the channel id. A personal channel matches if the uid of either user begins with it */
    readonly prefix?: string | undefined;
  };
  /** Format of the request bodies */
  readonly format: WebhookFormat;
  /** Maximum number of events in a request, and maximum time for which an event waits for further events */
  readonly batch: {
    /** Maximum number of events in a request. With 1, the event itself is the body */
    readonly max: number;
    /** Maximum time for which an event waits for further events, in milliseconds */
    readonly waitMs: number;
  };
  /** channel: events of a channel arrive in order. none: a request that is being retried does not delay later requests, unless four requests of a feed partition are being retried */
  readonly order: WebhookOrder;
  /** 0: nothing is delivered until enabled is 1 again */
  readonly enabled: Flag;
  /** Maximum number of seconds for which a failing request is repeated. If it still fails after this time, the webhook is disabled */
  readonly maxAgeS: number;
  /** 1: the webhook is defined in the configuration file */
  readonly fixed: Flag;
  /** Reason why a node disabled the webhook; empty if no node did */
  readonly disabled_reason: string;
  /** Creation time of the webhook in Unix milliseconds */
  readonly created_at: number;
  /** Number of replays that have not ended yet */
  readonly replays: number;
};

/** Settings to change. Absent settings are not changed */
export type WebhookChange = {
  /** Absolute URL that receives the events */
  readonly url?: string | undefined;
  /** Event types. A name with * at the end selects all types that begin with the text before it. A plain * does not select session.opened, session.closed or command.sent; select them by their full names, or with session.* or command.* */
  readonly types?: readonly string[] | undefined;
  /** Channels whose events are delivered. This filter does not affect events without a channel */
  readonly channels?:
    | {
        /** 1 personal channel, 2 group channel */
        readonly type?: ChannelType | undefined;
        /** Prefix of the channel id. A personal channel matches if the uid of either user begins with it */
        readonly prefix?: string | undefined;
      }
    | undefined;
  /** Format of the request bodies */
  readonly format?: WebhookFormat | undefined;
  /** Maximum number of events in a request, and maximum time for which an event waits for further events */
  readonly batch?:
    | {
        /** Maximum number of events in a request. With 1, the event itself is the body */
        readonly max?: number | undefined;
        /** Maximum time for which an event waits for further events, in milliseconds */
        readonly waitMs?: number | undefined;
      }
    | undefined;
  /** channel: events of a channel arrive in order. none: a request that is being retried does not delay later requests, unless four requests of a feed partition are being retried */
  readonly order?: WebhookOrder | undefined;
  /** 0: nothing is delivered until enabled is 1 again */
  readonly enabled?: Flag | undefined;
  /** Maximum number of seconds for which a failing request is repeated. If it still fails after this time, the webhook is disabled */
  readonly maxAgeS?: number | undefined;
};

/** One request to the receiver */
export type WebhookAttempt = {
  /** Time of the attempt in Unix milliseconds */
  readonly time: number;
  /** Value of the webhook-id header */
  readonly webhook_id: string;
  /** Attempt number, starting at 1 */
  readonly attempt: number;
  /** Number of events in the request; 0 for a test */
  readonly events: number;
  /** 1: the request belongs to a replay */
  readonly replay: Flag;
  /** HTTP status of the reply; 0 if there was no complete reply */
  readonly status: number;
  /** Time from the start of the request to the end of the reply, in milliseconds */
  readonly duration_ms: number;
  /** Reason why there was no complete reply; empty if the reply was complete */
  readonly error: string;
  /** First KiB of a reply without a 2xx status */
  readonly response: string;
  /** Node that sent the request */
  readonly node_id: string;
};

/** A range of the feed to deliver again */
export type WebhookReplay = {
  /** Position after which the range begins: a cursor from GET /events, a time (RFC 3339 or Unix milliseconds), or `oldest` */
  readonly after: string;
  /** Position at which the range ends, in the form of `after`. Absent means now */
  readonly before?: string | undefined;
  /** Event types. A name with * at the end selects all types that begin with the text before it. A plain * does not select session.opened, session.closed or command.sent; select them by their full names, or with session.* or command.* */
  readonly types?: readonly string[] | undefined;
};

/** Id of the replay that has begun */
export type WebhookReplayStarted = {
  /** Id of the replay */
  readonly id: string;
};

/** Number of seconds for which requests are also signed with the earlier secrets */
export type WebhookRotation = {
  /** Seconds for which the requests are also signed with the earlier secrets */
  readonly overlapS: number;
};

/** A new secret */
export type WebhookSecret = {
  /** New secret. It is not shown again */
  readonly secret: string;
};

/** The latest requests to the receiver, with their results */
export type WebhookAttemptList = {
  /** Attempts, newest first */
  readonly attempts: readonly WebhookAttempt[];
};

/** Events that the receiver did not accept and that are no longer retried */
export type WebhookFailureList = {
  /** Failures, oldest first */
  readonly failures: readonly WebhookFailure[];
};

/** An event that the receiver did not accept */
export type WebhookFailure = {
  /** Id of the event */
  readonly event_id: string;
  /** Type of the event */
  readonly type: string;
  /** Time of the event (RFC 3339) */
  readonly timestamp: string;
  /** Time in Unix milliseconds at which delivery of the event was abandoned */
  readonly parked_at: number;
  /** Number of attempts */
  readonly attempts: number;
  /** HTTP status of the last attempt; 0 if it got no complete reply */
  readonly status: number;
  /** Reason why there was no complete reply; empty if the reply was complete */
  readonly error: string;
  /** First KiB of the reply to the last attempt */
  readonly response: string;
};

/** Name and password of a manager */
export type LoginRequest = {
  /** Name of the manager account */
  readonly username: string;
  /** Password of the account */
  readonly password: string;
};

/** An access token and its account */
export type Login = {
  /** Access token */
  readonly token: string;
  /** Lifetime of the token in seconds */
  readonly expire: number;
  /** Account of the manager */
  readonly user: {
    /** Name of the account */
    readonly username: string;
    /** Role of the account */
    readonly role: Role;
    /** Permissions of the account. * means all */
    readonly permissions: readonly string[];
  };
};

/** One of admin, operator, viewer */
export type Role = "admin" | "operator" | "viewer";

/** Nodes that are alive, beginning with the node that replies */
export type NodeList = readonly Node[];

/** A node of the cluster */
export type Node = {
  /** Node id */
  readonly id: string;
  /** Address at which clients reach the node; empty if none is configured */
  readonly address: string;
  /** Address at which clients reach the node by WKProto over TCP; empty if none is configured */
  readonly tcp_address: string;
  /** Version of the product */
  readonly version: string;
  /** Seconds since the start */
  readonly uptime: number;
  /** Number of sessions */
  readonly sessions: number;
  /** Moving average of the fraction of one core that the process uses */
  readonly load: number;
  /** 1: the node is shutting down and accepts no sessions */
  readonly draining: Flag;
};

/** Addresses to which a client should connect. They may belong to different nodes */
export type Route = {
  /** Address (host:port) for WKProto over TCP; empty if none is configured */
  readonly tcp_addr: string;
  /** Address at which clients connect to the node, if that address does not begin with wss://. Otherwise empty */
  readonly ws_addr: string;
  /** Address at which clients connect to the node, if that address begins with wss://. Otherwise empty */
  readonly wss_addr: string;
};

/** Users who want to connect */
export type RouteRequest = readonly string[];

/** One record for each set of addresses, with the users who should connect to them */
export type RouteList = readonly {
  /** Users who should connect to these addresses */
  readonly uids: readonly string[];
  /** Address (host:port) for WKProto over TCP; empty if none is configured */
  readonly tcp_addr: string;
  /** Address at which clients connect to the node, if that address does not begin with wss://. Otherwise empty */
  readonly ws_addr: string;
  /** Address at which clients connect to the node, if that address begins with wss://. Otherwise empty */
  readonly wss_addr: string;
}[];

/** Session to end */
export type KickRequest = {
  /** User of the session */
  readonly uid: string;
  /** Id of the session (`session_id` in /user/devices, `id` in /connz), or its number (`conn_id` in /connz) */
  readonly conn_id: string | number;
};

/** One page of this node's sessions */
export type Connections = {
  /** Node that replies. The page contains only this node's sessions */
  readonly node_id: string;
  /** Sessions on this page */
  readonly connections: readonly {
    /** Session id */
    readonly id: string;
    /** Session id as a number, for /conn/kick */
    readonly conn_id: number;
    /** User id */
    readonly uid: string;
    /** Address of the client */
    readonly ip: string;
    /** Listener that accepted the client: client or wkproto */
    readonly listener: string;
    /** Seconds since the login. For a closed session, seconds from the opening of its connection to its end */
    readonly uptime: number;
    /** Number of bytes that the client has not read yet, or 0 for a closed session */
    readonly pending_bytes: number;
    /** Type of the device as text: app, web or desktop */
    readonly device: string;
    /** Type of the device */
    readonly device_flag: DeviceFlag;
    /** Level of the device in this session */
    readonly device_level: DeviceLevel;
    /** Id of the device, chosen by the client */
    readonly device_id: string;
    /** Wire format */
    readonly format: string;
    /** Protocol version of the wire format */
    readonly version: number;
    /** 0: the client has reported that it is in the background. Absent for closed sessions */
    readonly foreground?: Flag | undefined;
    /** Node that serves the session */
    readonly node_id: string;
    /** 1: no login was accepted, so uid and device are only what the client claimed. Absent for open sessions, like all following fields */
    readonly refused?: Flag | undefined;
    /** Time at which the session ended or was refused, in ISO 8601 */
    readonly ended?: string | undefined;
    /** Close reason (docs/protocol/native.md), or one of lost (no close frame), left (the client closed the connection), origin_refused and too_many_connections (the handshake was refused) */
    readonly reason?: string | undefined;
    /** Explanation of the reason, in English */
    readonly message?: string | undefined;
    /** WebSocket close code, or the HTTP status of a refused handshake */
    readonly code?: number | undefined;
    /** Code of the error with which the login was refused */
    readonly error?: string | undefined;
    /** Origin of the web page whose handshake was refused */
    readonly origin?: string | undefined;
  }[];
  /** Current time in ISO 8601 */
  readonly now: string;
  /** Number of this node's open or closed sessions that match the query */
  readonly total: number;
  /** Number of sessions that were skipped */
  readonly offset: number;
  /** Maximum number of sessions on this page */
  readonly limit: number;
};

/** State of the data migration */
export type MigrationResult = {
  /** State of the migration. completed: it finished in this process. migrated: another process or an earlier run finished it, or there was nothing to migrate */
  readonly status: MigrationStatus;
  /** Current step, such as user, channel or message */
  readonly step: string;
  /** Last error; null if there was none */
  readonly last_err: string | null;
  /** Number of attempts */
  readonly try_count: number;
};

/** One of running, completed, migrated, failed */
export type MigrationStatus = "running" | "completed" | "migrated" | "failed";

/** Identity and current statistics of a process */
export type Varz = {
  /** Node id */
  readonly server_id: string;
  /** Name of the product */
  readonly server_name: string;
  /** Version of the product */
  readonly version: string;
  /** Seconds since the start */
  readonly uptime: number;
  /** Number of open client sockets */
  readonly connections: number;
  /** Number of sessions */
  readonly sessions: number;
  /** Number of deliveries of messages to sessions since the start */
  readonly out_msgs: number;
  /** Resident memory in bytes */
  readonly mem: number;
  /** Address at which clients reach the node; empty if none is configured */
  readonly ws_addr: string;
  /** Address at which clients reach the node by WKProto over TCP; empty if none is configured */
  readonly tcp_addr: string;
};

/** Effective configuration of a node */
export type Configuration = {
  /** Node that replies */
  readonly node_id: string;
  /** Version of the product */
  readonly version: string;
  /** All settings, in the order of docs/configuration.md */
  readonly settings: readonly {
    /** Name of the setting */
    readonly key: string;
    /** Value of the setting. Absent if the value is secret. URLs are shown without user name and password, and secrets in a list are masked */
    readonly value?: unknown | undefined;
    /** 1: the value is secret and not shown */
    readonly is_secret: Flag;
    /** 1: the value is not the default */
    readonly is_set: Flag;
    /** Source of the value, and the sources that this source overrides */
    readonly source: string;
    /** Meaning of the setting */
    readonly description: string;
    /** Unit of the value */
    readonly unit?: string | undefined;
  }[];
};

/** Newest warnings and errors of a node */
export type Errors = {
  /** Node that replies */
  readonly node_id: string;
  /** At most 100 different warnings and errors, ordered by their latest occurrence, newest first */
  readonly errors: readonly {
    /** Time of the latest occurrence in ISO 8601 */
    readonly time: string;
    /** Level of the log line */
    readonly level: "warn" | "error" | "fatal";
    /** Part of the server that wrote the log line */
    readonly room: string;
    /** Message of the log line */
    readonly message: string;
    /** Cause, empty if the log line has none */
    readonly reason: string;
    /** Number of occurrences */
    readonly count: number;
    /** Object with other fields of the log line: strings, numbers and booleans */
    readonly fields: unknown;
  }[];
};

/** State of the import */
export type Import = {
  /** none if no import was ever opened */
  readonly state: "none" | "opening" | "open" | "closing" | "closed";
  /** Number of stored lines by kind, including lines that replaced earlier ones */
  readonly stored: {
    /** Number of user lines */
    readonly user?: number | undefined;
    /** Number of token lines */
    readonly token?: number | undefined;
    /** Number of channel lines */
    readonly channel?: number | undefined;
    /** Number of members lines */
    readonly members?: number | undefined;
    /** Number of list lines */
    readonly list?: number | undefined;
    /** Number of message lines */
    readonly message?: number | undefined;
    /** Number of position lines */
    readonly position?: number | undefined;
    /** Number of system_uid lines */
    readonly system_uid?: number | undefined;
  };
  /** Value of store.retentionS: older messages are not kept. 0 means no limit */
  readonly retention_s: number;
  /** Value of store.maxChannelMessages. 0 means no limit */
  readonly max_channel_messages: number;
  /** Newest message and checksum of the channel in the query */
  readonly channel?:
    | {
        /** Sequence number of the newest message */
        readonly head_seq: number;
        /** Time of the newest message in Unix seconds, or 0 if the message was removed or the channel has no message */
        readonly head_timestamp: number;
        /** Last sequence number that `count` and `checksum` include. They include at most 10000 messages */
        readonly through_seq: number;
        /** Number of messages that `checksum` includes */
        readonly count: number;
        /** SHA-256 of the messages, in hexadecimal */
        readonly checksum: string;
      }
    | undefined;
};

/** Range of messages to return */
export type MessageSyncRequest = {
  /** User whose conversation with channel_id is read; required if channel_id is a uid */
  readonly login_uid?: string | undefined;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Sequence number to begin with, inclusive. If this and end_message_seq are 0, the newest messages are returned */
  readonly start_message_seq?: number | undefined;
  /** Sequence number to end at, exclusive. 0 means no end */
  readonly end_message_seq?: number | undefined;
  /** Maximum number of messages to return. 0 or absent means 100 */
  readonly limit?: number | undefined;
  /** basic: event_meta does not contain the text of streams */
  readonly event_summary_mode?: string | undefined;
  /** Direction of the read. 0 or absent: towards older messages. 1: towards newer messages */
  readonly pull_mode?: 0 | 1 | undefined;
};

/** Messages in WuKongIM's format */
export type SyncedMessages = {
  /** start_message_seq of the request. In the reply to /messages, sequence number of the first message, or 0 without messages */
  readonly start_message_seq: number;
  /** end_message_seq of the request. In the reply to /messages, sequence number of the last message, or 0 without messages */
  readonly end_message_seq: number;
  /** 1: there are more messages in the direction of the read. In the reply to /messages, 1: further messages did not fit into the reply */
  readonly more: Flag;
  /** Messages in ascending order */
  readonly messages: readonly SyncedMessage[];
};

/** A message in WuKongIM's format */
export type SyncedMessage = {
  /** Id of the message, unique in the cluster */
  readonly message_id: number;
  /** The same id as a string */
  readonly message_idstr: string;
  /** Id of an imported message on its old server */
  readonly source_id?: string | undefined;
  /** Sequence number of the message in the channel */
  readonly message_seq: number;
  /** client_msg_no of the message */
  readonly client_msg_no: string;
  /** Sender */
  readonly from_uid: string;
  /** Channel id */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Time of the message in Unix seconds */
  readonly timestamp: number;
  /** Time of the message in Unix milliseconds */
  readonly timestamp_ms: number;
  /** Flags of the message */
  readonly header: {
    /** 1: the message is not stored */
    readonly no_persist: Flag;
    /** 1: the message counts as unread */
    readonly red_dot: Flag;
    /** 1: the message is a command */
    readonly sync_once: Flag;
  };
  /** Lifetime of the message in seconds, counted from its timestamp. 0 means that the message never expires */
  readonly expire: number;
  /** client_msg_no of the stream to which the message belongs; empty if none */
  readonly stream_no: string;
  /** Label of the message; empty if it has none */
  readonly tag_key: string;
  /** Bits that the client sent, plus 2 for a stream's message and 8 for a message with a topic */
  readonly setting: number;
  /** Topic that a WKProto client sent with the message */
  readonly topic?: string | undefined;
  /** Content of the message in base64 */
  readonly payload: string;
  /** Stream of the message, if it has one */
  readonly stream?:
    | {
        /** State of the stream. active: it has not ended. closed: its producer sent the end event. cancelled: a viewer, its producer or a forced start of another stream cancelled it. interrupted: its producer sent no event for longer than the idle timeout */
        readonly state: StreamState;
        /** Text of the stream so far */
        readonly text: string;
        /** Index of the next event of the stream */
        readonly next_index: number;
        /** Data of the start event */
        readonly start_data: string;
        /** Data of the end event; null while the stream is active */
        readonly end_data: string | null;
        /** Tool calls and custom events of the stream */
        readonly events: readonly {
          /** Index of the event in the stream */
          readonly index: number;
          /** Length of the text before the event, in UTF-16 code units */
          readonly text_offset: number;
          /** Id of the event */
          readonly id: string;
          /** Type of the event */
          readonly type: string;
          /** Data of the event */
          readonly data: string;
          /** Time of the event in Unix milliseconds */
          readonly timestamp: number;
        }[];
        /** Present if the stream is too long to be shown completely. `text` is then its beginning, `events` has one event that stands for all events that are not shown, and the whole stream can be read at `log` */
        readonly truncated?: 1 | undefined;
        /** Path at which the records of the stream can be read. In the wukongim dialect, present only if the stream is truncated */
        readonly log?: string | undefined;
      }
    | undefined;
  /** 1: the stream has ended */
  readonly end?: 1 | undefined;
  /** Reason for the end: 1 interrupted, 2 the end event had data (only in the wukongim dialect), 3 cancelled. For a stream that was begun with is_stream, the end_reason of its last event */
  readonly end_reason?: number | undefined;
  /** Reason for the end, as text */
  readonly error?: string | undefined;
  /** Text of the stream so far */
  readonly stream_data?: string | undefined;
  /** State of a stream that was begun with is_stream. Absent before its first event */
  readonly event_meta?:
    | {
        /** Always true */
        readonly has_events: true;
        /** True if the stream has ended */
        readonly completed: boolean;
        /** Number of the last stored event */
        readonly event_version?: number | undefined;
        /** Number of the last stored event */
        readonly last_msg_event_seq?: number | undefined;
        /** Number of lanes, always 1 */
        readonly event_count: 1;
        /** Number of open lanes. Absent if the stream has ended */
        readonly open_event_count?: 1 | undefined;
        /** State of each lane */
        readonly events: readonly {
          /** Name of the lane */
          readonly event_key: "main";
          /** Status of the lane */
          readonly status: "open" | "closed" | "error" | "cancelled";
          /** Number of the lane's last stored event */
          readonly last_msg_event_seq?: number | undefined;
          /** Text of the lane. Absent if there is no text, or if event_summary_mode is basic */
          readonly snapshot?:
            | {
                /** Always text */
                readonly kind: "text";
                /** Text of the stream so far */
                readonly text: string;
              }
            | undefined;
          /** end_reason of the last event */
          readonly end_reason?: number | undefined;
          /** error of the last event */
          readonly error?: string | undefined;
        }[];
      }
    | undefined;
  /** Fields of a call to /message/eventsync that lists this stream's events */
  readonly event_sync_hint?:
    | {
        /** client_msg_no of the message */
        readonly client_msg_no: string;
        /** Always 0 */
        readonly from_msg_event_seq: 0;
      }
    | undefined;
};

/** Messages to return */
export type MessagesRequest = {
  /** User whose conversation with channel_id is read; required if channel_id is a uid */
  readonly login_uid?: string | undefined;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Sequence numbers of the messages to return */
  readonly message_seqs?: readonly unknown[] | undefined;
  /** Ids of the messages to return */
  readonly message_ids?: readonly unknown[] | undefined;
  /** Sender of the messages in client_msg_nos. The messages that this sender sent within the last store.dedupeWindowS seconds are found even if the search does not cover them */
  readonly from_uid?: string | undefined;
  /** Values of client_msg_no of the messages to return. The search covers the newest 5000 messages, up to 64 MiB */
  readonly client_msg_nos?: readonly string[] | undefined;
};

/** The newest sequence number of a channel */
export type MaxMessageSeq = {
  /** Sequence number of the newest message; 0 if there is none */
  readonly message_seq: number;
};

/** Commands to list */
export type CommandSyncRequest = {
  /** User who received the commands */
  readonly uid: string;
  /** Maximum number of commands to return. 0 or absent means 200 */
  readonly limit?: number | undefined;
};

/** Commands, oldest first. message_seq is the sequence number in the user's inbox */
export type CommandList = readonly SyncedMessage[];

/** Commands to acknowledge */
export type CommandSyncAckRequest = {
  /** User who received the commands */
  readonly uid: string;
  /** message_seq of the last command that the client has processed */
  readonly last_message_seq: number;
};

/** The message, or a body with the status 404 if it does not exist */
export type SingleMessage = SyncedMessage | NoMessage;

/** Reply if there is no such message */
export type NoMessage = {
  /** 404: there is no such message */
  readonly status: 404;
};

/** Message to return */
export type MessageRequest = {
  /** User whose conversation with channel_id is read; required if channel_id is a uid */
  readonly login_uid?: string | undefined;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Id of the message, as a number or a string of digits */
  readonly message_id?: unknown | undefined;
  /** client_msg_no of the message. Used if message_id is absent or 0 */
  readonly client_msg_no?: string | undefined;
};

/** Conversations to list */
export type ConversationSyncRequest = {
  /** User whose conversations are listed */
  readonly uid: string;
  /** Highest `version` that the caller has. Only conversations that changed since this version are returned. 0 or absent means all conversations. A version more than a day ahead of both the current time and the newest change counts as 0 */
  readonly version?: number | undefined;
  /** Last message that the caller has in each conversation: entries channel_id:channel_type:seq, joined by |. recents then contains only later messages, and messages whose streams may have changed since `version`. An entry that cannot be read is skipped */
  readonly last_msg_seqs?: string | undefined;
  /** Maximum number of messages in the recents of each conversation. Absent means 0 */
  readonly msg_count?: number | undefined;
  /** 1: only conversations with unread messages */
  readonly only_unread?: Flag | undefined;
  /** Channel types to exclude */
  readonly exclude_channel_types?: readonly number[] | undefined;
  /** Page number, starting at 1. A conversation that moves between two calls may be missing or returned twice; use `cursor` to avoid this. 0 or absent means that the result is not paginated */
  readonly page?: number | undefined;
  /** With `page`, the number of conversations per page; 0 or absent means 100. Without `page`, the same as `limit`. Ignored if `limit` is set */
  readonly page_size?: number | undefined;
  /** Maximum number of conversations to return. 0 or absent means `page_size`, or 10000 if neither `page` nor `page_size` is set */
  readonly limit?: number | undefined;
  /** Value of the Jindou-Cursor header in the previous reply. The reply continues after it, and selects conversations by the `version` of the first call. Cannot be combined with `page` */
  readonly cursor?: string | undefined;
};

/** Conversations, ordered by their newest message, newest first */
export type ConversationList = readonly Conversation[];

/** A conversation of a user */
export type Conversation = {
  /** Channel id */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Number of unread messages */
  readonly unread: number;
  /** Time of the last message in Unix seconds */
  readonly timestamp: number;
  /** Sequence number of the last message */
  readonly last_msg_seq: number;
  /** client_msg_no of the last message */
  readonly last_client_msg_no: string;
  /** Sequence number up to which messages were deleted from the conversation */
  readonly offset_msg_seq: number;
  /** Sequence number up to which the user has read the messages */
  readonly readed_to_msg_seq: number;
  /** Time of the last change in Unix milliseconds */
  readonly version: number;
  /** Newest messages, at most `msg_count` of them, newest first */
  readonly recents: readonly SyncedMessage[];
};

/** User whose channels are listed */
export type ConversationChannelsRequest = {
  /** User whose channels are listed */
  readonly uid: string;
};

/** Channels of the user's newest conversations */
export type StoredChannelList = readonly {
  /** Channel id. For a personal channel, both uids joined by @ */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
}[];

/** Conversations to return */
export type ConversationsByChannelsRequest = {
  /** User whose conversations are returned */
  readonly uid: string;
  /** Channels whose conversations are returned */
  readonly channels: readonly {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }[];
  /** Maximum number of messages in the recents of each conversation. 0 or absent means 15 */
  readonly msg_count?: number | undefined;
};

/** A conversation of a user */
export type ConversationRequest = {
  /** User to whom the conversation belongs */
  readonly uid: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
};

/** New number of unread messages */
export type SetUnreadRequest = {
  /** User to whom the conversation belongs */
  readonly uid: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** New number of unread messages. If the conversation has fewer messages, all of them become unread */
  readonly unread: number;
};

/** A conversation of a user, and the last message to hide */
export type DeleteConversationRequest = {
  /** User to whom the conversation belongs */
  readonly uid: string;
  /** Channel id; for a personal channel, the uid of the user */
  readonly channel_id: string;
  /** 1 personal channel, 2 group channel */
  readonly channel_type: ChannelType;
  /** Hides only messages up to this message_seq, so that a retry does not hide a message that arrived after the first call. 0 or absent means all messages */
  readonly message_seq?: number | undefined;
};

/** The calls of the HTTP interface, by their operation ids. */
export interface Operations {
  /** Sets a user's token for a device type */
  setUserToken(body: UserTokenRequest): Promise<Status>;
  /** Logs out a user's devices: revokes their tokens and ends their sessions */
  logOutDevices(body: DeviceQuitRequest): Promise<Status>;
  /** Returns the online status of several users */
  getOnlineStatus(body: OnlineStatusRequest): Promise<OnlineStatusList>;
  /** Lists a user's registered device types and live sessions */
  listDevices(query: {
    /** User id */
    readonly uid: string;
  }): Promise<Devices>;
  /** Lists the system accounts */
  listSystemAccounts(): Promise<SystemUidList>;
  /** Turns users into system accounts, which are exempt from the rules for sending */
  addSystemAccounts(body: SystemUidsRequest): Promise<Status>;
  /** Makes system accounts normal users again */
  removeSystemAccounts(body: SystemUidsRequest): Promise<Status>;
  /** Creates a channel. With disband 1, disbands a channel that already exists */
  createChannel(body: ChannelRequest): Promise<Status>;
  /** Changes the flags that the body contains */
  updateChannel(body: ChannelInfoRequest): Promise<Status>;
  /** Adds subscribers to a channel */
  addSubscribers(body: SubscriberAddRequest): Promise<Status>;
  /** Removes all users in the body from the subscribers, or nobody if one of them is not a subscriber */
  removeSubscribers(body: SubscriberRemoveRequest): Promise<Status>;
  /** Removes all subscribers, including temporary ones */
  removeAllSubscribers(body: ChannelTarget): Promise<Status>;
  /** Disbands a group permanently */
  deleteChannel(body: ChannelTarget): Promise<Status>;
  /** Adds users to the blacklist, which lists the users who may not send to the channel */
  addToBlacklist(body: ListRequest): Promise<Status>;
  /** Replaces the blacklist, which lists the users who may not send to the channel */
  setBlacklist(body: ListSetRequest): Promise<Status>;
  /** Removes users from the blacklist. Users who are not on it are ignored */
  removeFromBlacklist(body: ListRequest): Promise<Status>;
  /** Removes all users from the blacklist */
  clearBlacklist(body: ChannelTarget): Promise<Status>;
  /** Adds users to the whitelist, which lists the only users who may send to a group. An empty whitelist has no effect */
  addToWhitelist(body: ListRequest): Promise<Status>;
  /** Replaces the whitelist, which lists the only users who may send to a group. An empty whitelist has no effect */
  setWhitelist(body: ListSetRequest): Promise<Status>;
  /** Removes users from the whitelist. Users who are not on it are ignored */
  removeFromWhitelist(body: ListRequest): Promise<Status>;
  /** Removes all users from the whitelist */
  clearWhitelist(body: ChannelTarget): Promise<Status>;
  /** Returns a channel's flags and user counts */
  getChannelState(query: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }): Promise<ChannelState>;
  /** Lists the subscribers of a channel, or the users on one of its lists */
  listChannelMembers(query: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** List whose users are returned. Absent means `subscribers`: the permanent and the temporary subscribers */
    readonly list?: "subscribers" | "blacklist" | "whitelist" | undefined;
    /** Maximum number of ids to return. Absent means 1000 */
    readonly limit?: number | undefined;
    /** Value of cursor in the previous reply; empty or absent for the first page */
    readonly cursor?: string | undefined;
  }): Promise<UidPage>;
  /** Lists the whitelist's first users, at most `api.maxSubscribersPerCall` of them */
  getWhitelist(query: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }): Promise<Whitelist>;
  /** Lists which members of a channel have read a message, in pages of 100 */
  listReaders(query: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** User whose conversation with channel_id is read; required for a personal channel */
    readonly uid?: string | undefined;
    /** Sequence number of the message */
    readonly message_seq: number;
    /** Value of cursor in the previous reply; empty or absent for the first page */
    readonly cursor?: string | undefined;
  }): Promise<Readers>;
  /** Lists the channels that received the most messages and events through this node in the last 15 minutes */
  listBusiestChannels(query?: {
    /** Maximum number of channels to return. Absent means 20 */
    readonly limit?: number | undefined;
  }): Promise<BusiestChannels>;
  /** Lists a user's groups */
  listUserChannels(query: {
    /** User id */
    readonly uid: string;
    /** Maximum number of ids to return. Absent means 1000 */
    readonly limit?: number | undefined;
    /** Value of cursor in the previous reply; empty or absent for the first page */
    readonly cursor?: string | undefined;
  }): Promise<ChannelPage>;
  /** Sends a message. If the message is stored, it is durable when the call returns */
  sendMessage(body: SendRequest): Promise<SentMessage>;
  /** Sends a message to each of several users as a personal message */
  sendMessageToUsers(body: SendBatchRequest): Promise<SentBatch>;
  /** Returns a range of a channel's history */
  listMessages(query: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** User whose conversation with channel_id is read; required for a personal channel */
    readonly uid?: string | undefined;
    /** First sequence number, inclusive. Absent means 1 */
    readonly from_seq?: number | undefined;
    /** Last sequence number, inclusive. 0 or absent means the newest */
    readonly to_seq?: number | undefined;
    /** Only messages before this sequence number, newest first unless `after` or `order` is set */
    readonly before?: number | undefined;
    /** Only messages after this sequence number, oldest first unless `order` is set */
    readonly after?: number | undefined;
    /** Maximum number of messages to return. Absent means 50 */
    readonly limit?: number | undefined;
    /** Order of the messages. asc: oldest first. desc: newest first, so that the limit selects the newest messages. Absent means desc if `before` is given without `after`, otherwise asc */
    readonly order?: "asc" | "desc" | undefined;
  }): Promise<History>;
  /** Sends an event: streaming text, a tool call, or a custom event. An event of a stream is durable when the call returns */
  sendEvent(
    body: EventRequest,
    query?: {
      /** 1: a start event first ends the active stream of the channel. Absent or any other value: a start event is rejected while a stream is active */
      readonly force?: string | undefined;
    },
  ): Promise<EventResult>;
  /** Cancels the active stream with this client_msg_no. A stream that has ended does not change */
  cancelStream(body: CancelRequest): Promise<EventResult>;
  /** Returns events of the feed, or follows it with server-sent events */
  readEvents(query?: {
    /** Position after which events are read: a cursor, `now`, `oldest`, or a time (RFC 3339 or Unix milliseconds). Absent means `oldest` */
    readonly after?: string | undefined;
    /** Event types, separated by commas. A name with `*` at the end selects all types that begin with the text before it. A plain `*` does not select `session.opened`, `session.closed` or `command.sent`; select them by their full names, or with `session.*` or `command.*`. Absent means all types except these three */
    readonly types?: string | undefined;
    /** Only events of this channel: `2:<group>`, `1:<uid>@<uid>` with the users in any order, or `1:<uid>` for a user's channel record */
    readonly channel?: string | undefined;
    /** Maximum number of events. Absent means 100 */
    readonly limit?: number | undefined;
    /** Seconds to wait for the first event. Absent means 0 */
    readonly wait?: number | undefined;
  }): Promise<Events>;
  /** Turns the event feed on or off */
  setEventFeed(body: FeedRequest): Promise<Feed>;
  /** Returns the state of a stream, or follows it with server-sent events. Viewers can call it with a client token */
  readStream(query: {
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** Identifies the stream or message. All events of a stream have the same value */
    readonly client_msg_no: string;
    /** User whose conversation with channel_id is read; required for a personal channel */
    readonly uid?: string | undefined;
    /** Index of the first event to send if the client follows the stream. Absent means 0. The Last-Event-ID header takes precedence. The `id` of each event is the index of the event after it, so a client that sends the last `id` when it reconnects continues with the next event */
    readonly from?: number | undefined;
    /** Device token of the user `uid`, who must be in the channel. With this token, the call needs no other credential. The token can also be sent in the x-token header, or in x-token* in the form of RFC 8187 */
    readonly token?: string | undefined;
    /** Type of the device to which the token belongs: 0 app, 1 web, 2 desktop. Absent means 1 */
    readonly device_flag?: DeviceFlag | undefined;
  }): Promise<Stream | undefined>;
  /** Signs a stream's URL, so that its bearer needs no other credential */
  signStreamUrl(body: SignedUrlRequest): Promise<SignedUrl>;
  /** Creates a new key for signed URLs. URLs that were signed earlier stay valid for at most 86400 seconds after this call */
  rotateSigningKey(): Promise<KeyRotation>;
  /** Creates a webhook. Events that occur after this call are delivered to it */
  createWebhook(body: WebhookRequest): Promise<CreatedWebhook>;
  /** Lists the webhooks, without their secrets */
  listWebhooks(): Promise<WebhookList>;
  /** Changes the settings that the body contains */
  updateWebhook(
    body: WebhookChange,
    query: {
      /** Id of the webhook */
      readonly id: string;
    },
  ): Promise<Webhook>;
  /** Deletes a webhook and its failures */
  deleteWebhook(query: {
    /** Id of the webhook */
    readonly id: string;
  }): Promise<Status>;
  /** Sends a ping event to the receiver and returns the reply */
  sendTestWebhook(query: {
    /** Id of the webhook */
    readonly id: string;
  }): Promise<WebhookAttempt>;
  /** Delivers a range of the feed again, while live delivery continues */
  createWebhookReplay(
    body: WebhookReplay,
    query: {
      /** Id of the webhook */
      readonly id: string;
    },
  ): Promise<WebhookReplayStarted>;
  /** Adds a secret. Until the overlap ends, requests are signed with the earlier secrets too */
  rotateWebhookSecret(
    body: WebhookRotation,
    query: {
      /** Id of the webhook */
      readonly id: string;
    },
  ): Promise<WebhookSecret>;
  /** Lists the latest requests to the receiver, with their results */
  listWebhookAttempts(query: {
    /** Id of the webhook */
    readonly id: string;
    /** Maximum number of attempts to return. Absent means 100 */
    readonly limit?: number | undefined;
  }): Promise<WebhookAttemptList>;
  /** Lists the events that the receiver did not accept and that are no longer retried */
  listWebhookFailures(query: {
    /** Id of the webhook */
    readonly id: string;
  }): Promise<WebhookFailureList>;
  /** Sends a failed event again. An event that the receiver accepts is no longer listed as a failure */
  sendWebhookFailure(query: {
    /** Id of the webhook */
    readonly id: string;
    /** Id of the event */
    readonly event_id: string;
  }): Promise<WebhookAttempt>;
  /** Returns an access token for a username and a password */
  login(body: LoginRequest): Promise<Login>;
  /** Revokes the access token that authenticates the call */
  logout(): Promise<Status>;
  /** Lists the cluster's live nodes */
  listNodes(): Promise<NodeList>;
  /** Returns the addresses to which a client should connect. Chooses among the least loaded nodes */
  getRoute(query?: {
    /** User who wants to connect. Different users are spread over equally loaded nodes */
    readonly uid?: string | undefined;
  }): Promise<Route>;
  /** Returns the addresses to which several clients should connect */
  getRoutes(body: RouteRequest): Promise<RouteList>;
  /** Ends a session on any node */
  kickSession(body: KickRequest): Promise<Status>;
  /** Lists this node's sessions */
  listSessions(query?: {
    /** open or absent: this node's sessions. closed: the sessions that ended on this node and the connects that it refused within the last 24 hours, at most client.keepClosed of each */
    readonly state?: "open" | "closed" | undefined;
    /** Text that the user id must contain */
    readonly uid?: string | undefined;
    /** Text that the address of the client must contain */
    readonly ip?: string | undefined;
    /** Text that the device type, device id, listener or wire format must contain */
    readonly client?: string | undefined;
    /** Text that the close reason must contain. Applies only to closed sessions */
    readonly reason?: string | undefined;
    /** Sort key: uptime, id (only open sessions) or end (only closed sessions). The suffix Desc means descending order. Default: id for open sessions, endDesc for closed sessions */
    readonly sort?: "id" | "idDesc" | "uptime" | "uptimeDesc" | "end" | "endDesc" | undefined;
    /** Number of sessions to skip. Absent means 0 */
    readonly offset?: number | undefined;
    /** Maximum number of sessions to return. Absent means 20 */
    readonly limit?: number | undefined;
  }): Promise<Connections>;
  /** Returns the state of the data migration */
  getMigrationResult(): Promise<MigrationResult>;
  /** Succeeds if the process is alive */
  checkLiveness(): Promise<Status>;
  /** Succeeds if the node is ready for work */
  checkReadiness(): Promise<Status>;
  /** Succeeds if the node is ready for work, as /readyz does */
  checkHealth(): Promise<Status>;
  /** Returns the identity and the current statistics of this process */
  getStatistics(): Promise<Varz>;
  /** Returns the effective configuration of this node, without secrets */
  getConfiguration(): Promise<Configuration>;
  /** Returns the newest warnings and errors of this node, without secrets */
  listErrors(): Promise<Errors>;
  /** Opens the import of another server's data into an empty store. Returns when no node serves clients any longer */
  openImport(): Promise<Import>;
  /** Returns the state of the import and, if the query names a channel, the checksum of its messages */
  getImport(query?: {
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id?: string | undefined;
    /** 1 personal channel, 2 group channel */
    readonly channel_type?: ChannelType | undefined;
    /** User whose conversation with channel_id is read; required for a personal channel */
    readonly uid?: string | undefined;
    /** First sequence number that the checksum includes. Absent means 1 */
    readonly from_seq?: number | undefined;
    /** Last sequence number that the checksum includes. Absent means the newest */
    readonly to_seq?: number | undefined;
  }): Promise<Import>;
  /** Closes the import permanently. The nodes then serve clients */
  closeImport(): Promise<Import>;
  /** Returns messages before or after a position in a channel's history */
  syncMessages(body: MessageSyncRequest): Promise<SyncedMessages>;
  /** Returns the messages of a channel that have the given sequence numbers, ids or client_msg_nos */
  findMessages(body: MessagesRequest): Promise<SyncedMessages>;
  /** Returns the newest sequence number of a channel */
  getMaxMessageSeq(query: {
    /** User whose conversation with channel_id is read; required if channel_id is a uid */
    readonly login_uid?: string | undefined;
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }): Promise<MaxMessageSeq>;
  /** Lists a user's commands that no device has acknowledged */
  listCommands(body: CommandSyncRequest): Promise<CommandList>;
  /** Acknowledges a user's commands up to a sequence number */
  acknowledgeCommands(body: CommandSyncAckRequest): Promise<Status>;
  /** Returns the newest message of a channel */
  getLastMessage(query: {
    /** User whose conversation with channel_id is read; required if channel_id is a uid */
    readonly login_uid?: string | undefined;
    /** Channel id; for a personal channel, the uid of the user */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
  }): Promise<SingleMessage>;
  /** Returns the message with the given id or client_msg_no */
  getMessage(body: MessageRequest): Promise<SingleMessage>;
  /** Returns the message with the given client_msg_no */
  getMessageByClientMsgNo(query: {
    /** User whose conversation with channel_id is read; required if channel_id is a uid */
    readonly login_uid?: string | undefined;
    /** Channel id. For a personal channel, either the uid of the other user, together with login_uid, or both uids joined by @ */
    readonly channel_id: string;
    /** 1 personal channel, 2 group channel */
    readonly channel_type: ChannelType;
    /** client_msg_no of the message */
    readonly client_msg_no: string;
  }): Promise<SingleMessage>;
  /** Lists a user's conversations, ordered by their newest message, newest first */
  listConversations(body: ConversationSyncRequest): Promise<ConversationList>;
  /** Lists the channels of a user's newest conversations, with the ids under which WuKongIM stores them */
  listConversationChannels(body: ConversationChannelsRequest): Promise<StoredChannelList>;
  /** Returns a user's conversations in the given channels */
  listConversationsByChannels(body: ConversationsByChannelsRequest): Promise<ConversationList>;
  /** Marks all messages of a conversation as read */
  clearUnread(body: ConversationRequest): Promise<Status>;
  /** Sets the number of unread messages of a conversation */
  setUnread(body: SetUnreadRequest): Promise<Status>;
  /** Hides a conversation until a new message arrives, and hides its messages permanently */
  deleteConversation(body: DeleteConversationRequest): Promise<Status>;
}

export const OPERATIONS = {
  setUserToken: { method: "POST", path: "/user/token", hasBody: true },
  logOutDevices: { method: "POST", path: "/user/device_quit", hasBody: true },
  getOnlineStatus: { method: "POST", path: "/user/onlinestatus", hasBody: true },
  listDevices: { method: "GET", path: "/user/devices" },
  listSystemAccounts: { method: "GET", path: "/user/systemuids" },
  addSystemAccounts: { method: "POST", path: "/user/systemuids_add", hasBody: true },
  removeSystemAccounts: { method: "POST", path: "/user/systemuids_remove", hasBody: true },
  createChannel: { method: "POST", path: "/channel", hasBody: true },
  updateChannel: { method: "POST", path: "/channel/info", hasBody: true },
  addSubscribers: { method: "POST", path: "/channel/subscriber_add", hasBody: true },
  removeSubscribers: { method: "POST", path: "/channel/subscriber_remove", hasBody: true },
  removeAllSubscribers: { method: "POST", path: "/channel/subscriber_remove_all", hasBody: true },
  deleteChannel: { method: "POST", path: "/channel/delete", hasBody: true },
  addToBlacklist: { method: "POST", path: "/channel/blacklist_add", hasBody: true },
  setBlacklist: { method: "POST", path: "/channel/blacklist_set", hasBody: true },
  removeFromBlacklist: { method: "POST", path: "/channel/blacklist_remove", hasBody: true },
  clearBlacklist: { method: "POST", path: "/channel/blacklist_remove_all", hasBody: true },
  addToWhitelist: { method: "POST", path: "/channel/whitelist_add", hasBody: true },
  setWhitelist: { method: "POST", path: "/channel/whitelist_set", hasBody: true },
  removeFromWhitelist: { method: "POST", path: "/channel/whitelist_remove", hasBody: true },
  clearWhitelist: { method: "POST", path: "/channel/whitelist_remove_all", hasBody: true },
  getChannelState: { method: "GET", path: "/channel/state" },
  listChannelMembers: { method: "GET", path: "/channel/members" },
  getWhitelist: { method: "GET", path: "/channel/whitelist" },
  listReaders: { method: "GET", path: "/channel/readers" },
  listBusiestChannels: { method: "GET", path: "/channels/busiest" },
  listUserChannels: { method: "GET", path: "/user/channels" },
  sendMessage: { method: "POST", path: "/message/send", hasBody: true },
  sendMessageToUsers: { method: "POST", path: "/message/sendbatch", hasBody: true },
  listMessages: { method: "GET", path: "/channel/messages" },
  sendEvent: { method: "POST", path: "/event", hasBody: true },
  cancelStream: { method: "POST", path: "/stream/cancel", hasBody: true },
  readEvents: { method: "GET", path: "/events" },
  setEventFeed: { method: "POST", path: "/events/feed", hasBody: true },
  readStream: { method: "GET", path: "/stream/{channel_type}/{channel_id}/{client_msg_no}" },
  signStreamUrl: { method: "POST", path: "/v1/sign", hasBody: true },
  rotateSigningKey: { method: "POST", path: "/v1/sign/rotate" },
  createWebhook: { method: "POST", path: "/webhooks", hasBody: true },
  listWebhooks: { method: "GET", path: "/webhooks" },
  updateWebhook: { method: "PATCH", path: "/webhooks/{id}", hasBody: true },
  deleteWebhook: { method: "DELETE", path: "/webhooks/{id}" },
  sendTestWebhook: { method: "POST", path: "/webhooks/{id}/test" },
  createWebhookReplay: { method: "POST", path: "/webhooks/{id}/replay", hasBody: true },
  rotateWebhookSecret: { method: "POST", path: "/webhooks/{id}/secrets", hasBody: true },
  listWebhookAttempts: { method: "GET", path: "/webhooks/{id}/attempts" },
  listWebhookFailures: { method: "GET", path: "/webhooks/{id}/failures" },
  sendWebhookFailure: { method: "POST", path: "/webhooks/{id}/failures/{event_id}/retry" },
  login: { method: "POST", path: "/manager/login", hasBody: true },
  logout: { method: "POST", path: "/manager/logout" },
  listNodes: { method: "GET", path: "/cluster/nodes" },
  getRoute: { method: "GET", path: "/route" },
  getRoutes: { method: "POST", path: "/route/batch", hasBody: true },
  kickSession: { method: "POST", path: "/conn/kick", hasBody: true },
  listSessions: { method: "GET", path: "/connz" },
  getMigrationResult: { method: "GET", path: "/migrate/result" },
  checkLiveness: { method: "GET", path: "/healthz" },
  checkReadiness: { method: "GET", path: "/readyz" },
  checkHealth: { method: "GET", path: "/health" },
  getStatistics: { method: "GET", path: "/varz" },
  getConfiguration: { method: "GET", path: "/admin/config" },
  listErrors: { method: "GET", path: "/admin/errors" },
  openImport: { method: "POST", path: "/admin/import/open" },
  getImport: { method: "GET", path: "/admin/import" },
  closeImport: { method: "POST", path: "/admin/import/close" },
  syncMessages: { method: "POST", path: "/channel/messagesync", hasBody: true },
  findMessages: { method: "POST", path: "/messages", hasBody: true },
  getMaxMessageSeq: { method: "GET", path: "/channel/max_message_seq" },
  listCommands: { method: "POST", path: "/message/sync", hasBody: true },
  acknowledgeCommands: { method: "POST", path: "/message/syncack", hasBody: true },
  getLastMessage: { method: "GET", path: "/channel/last_message" },
  getMessage: { method: "POST", path: "/message", hasBody: true },
  getMessageByClientMsgNo: { method: "GET", path: "/message/byclientmsgno" },
  listConversations: { method: "POST", path: "/conversation/sync", hasBody: true },
  listConversationChannels: { method: "POST", path: "/conversation/channels", hasBody: true },
  listConversationsByChannels: {
    method: "POST",
    path: "/conversation/syncByChannels",
    hasBody: true,
  },
  clearUnread: { method: "POST", path: "/conversations/clearUnread", hasBody: true },
  setUnread: { method: "POST", path: "/conversations/setUnread", hasBody: true },
  deleteConversation: { method: "POST", path: "/conversations/delete", hasBody: true },
} as const satisfies Record<keyof Operations, object>;
