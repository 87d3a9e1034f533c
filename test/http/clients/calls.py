"""Uses the named package to make the calls that a file lists, and prints each reply's status."""

import asyncio
import importlib
import sys

package = importlib.import_module(sys.argv[3])
HEADERS = {"content-type": "application/json"}


def calls():
    with open(sys.argv[2], encoding="utf-8") as lines:
        for line in lines:
            method, path, body = line.rstrip("\n").split("\t")
            yield method, sys.argv[1] + path, body.encode() or None


def blocking():
    with (package.Session() if sys.argv[3] == "requests" else package.Client()) as client:
        for method, url, body in calls():
            name = "data" if sys.argv[3] == "requests" else "content"
            print(client.request(method, url, headers=HEADERS, **{name: body}).status_code)


async def concurrent():
    async with package.ClientSession() as client:
        for method, url, body in calls():
            async with client.request(method, url, headers=HEADERS, data=body) as reply:
                print(reply.status)


if sys.argv[3] == "aiohttp":
    asyncio.run(concurrent())
else:
    blocking()
