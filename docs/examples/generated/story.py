"""Uses Jindou's HTTP API through the package that openapi-python-client makes:

    openapi-python-client generate --url http://127.0.0.1:5001/openapi.json

The first argument is the address of the API, the second the password of the manager `admin`.
"""

import base64
import json
import sys

from jindou_control_plane_client import Client
from jindou_control_plane_client.api.channels import create_channel, remove_subscribers
from jindou_control_plane_client.api.conversations import list_conversations
from jindou_control_plane_client.api.managers import login
from jindou_control_plane_client.api.messages import list_messages, send_message
from jindou_control_plane_client.api.streams import read_stream, send_event
from jindou_control_plane_client.api.system import get_migration_result
from jindou_control_plane_client.api.users import get_online_status, set_user_token
from jindou_control_plane_client.models import (
    ChannelRequest,
    ChannelType,
    ConversationSyncRequest,
    DeviceFlag,
    EventRequest,
    EventRequestEvent,
    LoginRequest,
    SendRequest,
    SubscriberRemoveRequest,
    UserTokenRequest,
)

BASE_URL, PASSWORD = sys.argv[1:3]
GROUP = ChannelType.GROUP
CONTENT = base64.b64encode(json.dumps({"type": 1, "content": "hello"}).encode()).decode()

with Client(base_url=BASE_URL, raise_on_unexpected_status=True) as api:
    token = UserTokenRequest(uid="alice", token="alice-secret", device_flag=DeviceFlag.WEB)
    set_user_token.sync(client=api, body=token)
    online = get_online_status.sync(client=api, body=["alice", "bob"])
    lobby = ChannelRequest(channel_id="lobby", channel_type=GROUP, subscribers=["alice", "bob"])
    create_channel.sync(client=api, body=lobby)

    message = SendRequest(
        payload=CONTENT,
        from_uid="bob",
        channel_id="lobby",
        channel_type=GROUP,
        client_msg_no="first",
    )
    sent = send_message.sync(client=api, body=message)

    for kind, data in (("Start", ""), ("Content", "It is sunny."), ("End", "")):
        event = EventRequest(
            client_msg_no="answer",
            channel_id="lobby",
            channel_type=GROUP,
            from_uid="bob",
            event=EventRequestEvent(type_="___TextMessage" + kind, data=data),
        )
        send_event.sync(client=api, body=event, force="1")
    stream = read_stream.sync(GROUP, "lobby", "answer", client=api)

    history = list_messages.sync(client=api, channel_id="lobby", channel_type=GROUP)
    chats = list_conversations.sync(client=api, body=ConversationSyncRequest(uid="alice"))
    leaver = SubscriberRemoveRequest(
        channel_id="lobby", channel_type=GROUP, subscribers=["bob"]
    )
    removed = remove_subscribers.sync(client=api, body=leaver)
    message.client_msg_no = "second"
    refused = send_message.sync(client=api, body=message)
    account = login.sync(client=api, body=LoginRequest(username="admin", password=PASSWORD))
    migration = get_migration_result.sync(client=api)

print(
    json.dumps(
        {
            "online": [record.online.value for record in online],
            "seq": sent.message_seq,
            "text": stream.text,
            "history": len(history.messages),
            "unread": [chat.unread for chat in chats],
            "removed": removed.status,
            "refused": refused.code,
            "role": account.user.role.value,
            "migration": migration.status.value,
        }
    )
)
