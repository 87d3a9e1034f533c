# The Jindou image. It is built from the lock file, contains no development packages, and runs as an
# unprivileged user.
#
#   export JINDOU_API_TOKEN=$(openssl rand -hex 24)
#   docker build -t jindou .
#   docker run -d --name jindou -p 5200:5200 -p 127.0.0.1:5001:5001 -v jindou:/data \
#     -e JINDOU_API_LISTEN=0.0.0.0:5001 -e JINDOU_API_TOKEN jindou
#
# Without JINDOU_API_LISTEN the HTTP API listens on 127.0.0.1:5001, which only the container itself
# can reach. A process whose API is reachable from outside does not start without a credential.
# config/compose/ has examples with Docker Compose.
#
# By default the image has the newest Node.js for which there is a binary of uWebSockets.js. Others
# run on the portable transport, which costs more processor time (docs/operations.md):
#
#   docker build --build-arg NODE=26-trixie-slim -t jindou .
#   docker build --build-arg NODE=26-alpine -t jindou .
#
# The process writes only to /data, so it runs with `--read-only --cap-drop=ALL`. It also runs as any
# other user id with group 0, which is what OpenShift chooses.

ARG NODE=24-trixie-slim

FROM node:${NODE} AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# The uWebSockets.js of the lock file supports Node.js up to version 22. This adds another release,
# whose binaries support Node.js 20 to 25 and need the glibc of Debian 13. The hashes are those of
# docs/dependencies.md.
RUN npm ci --include=dev --ignore-scripts \
 && npm install --ignore-scripts --save-exact @btc-vision/uwebsockets.js@20.57.0 \
 && printf '%s  node_modules/@btc-vision/uwebsockets.js/%s\n' \
      98128405dba2fb608448e921a979530f70c946a2cc9889c15f2fa70c2d00ab05 uws_linux_x64_137.node \
      88618b30ddf6b2b62310db89f40a701616676352aac5e0f6184dd8ef876199ce uws_linux_arm64_137.node > /tmp/hashes \
 && sha256sum -c /tmp/hashes
COPY tsconfig.json ./
COPY .ci/build-server.mjs .ci/build-pages.mjs ./.ci/
COPY src ./src
# Both packages of uWebSockets.js contain a binary for every platform and version of Node.js. Only
# those that this image may load are kept.
RUN npm run build:server && chmod +x dist/main.js && npm prune --omit=dev --ignore-scripts \
 && find -L node_modules/uWebSockets.js node_modules/@btc-vision/uwebsockets.js -name '*.node' \
      ! -name "uws_linux_$(node -p 'process.arch + "_" + process.versions.modules').node" -exec rm {} +

FROM node:${NODE}
ENV NODE_ENV=production JINDOU_STORE_PATH=/data
WORKDIR /app
# Process 1 is tini. The kernel does not deliver a SIGTERM to process 1 before Node.js handles it.
RUN if command -v apk >/dev/null; then apk add --no-cache 'tini~=0.19'; \
    else apt-get update && apt-get install -y --no-install-recommends 'tini=0.19.*' \
      && rm -rf /var/lib/apt/lists/*; fi
# User 1000 of the base image owns the data folder and nothing else. Group 0 may write to it, too.
RUN install -d -o 1000 -g 0 -m 0770 /data
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
COPY --from=build /app/package.json ./
COPY LICENSE ./
COPY config ./config
# Starts the node, with `--disable-sigusr1` if the Node.js of this image has that option (22.14 and
# newer): an older one does not start with it. docs/operations.md (systemd) describes the other
# option.
RUN if node --disable-sigusr1 --version 2>/dev/null; then flag=' --disable-sigusr1'; else flag=; fi \
 && printf '#!/bin/sh\nexec node --initial-old-space-size=64 --min-semi-space-size=16%s /app/dist/main.js "$@"\n' "$flag" \
      > /usr/local/bin/start-jindou \
 && chmod 755 /usr/local/bin/start-jindou
# For `docker exec jindou jindou health` and the other commands that call the node.
RUN ln -s /app/dist/main.js /usr/local/bin/jindou
# A number, because Kubernetes rejects a name if the pod has `runAsNonRoot`.
USER 1000
VOLUME /data
EXPOSE 5001 5200
STOPSIGNAL SIGTERM
# Sends a request to the address in JINDOU_API_LISTEN or to the default address; a wildcard address
# is replaced by loopback. Certificates are not verified, because the check only shows that the
# process responds. If a file or flag sets another address of the API, replace this health check.
HEALTHCHECK --interval=15s --timeout=3s --start-period=30s --retries=3 CMD ["node", "-e", "const e=process.env,m=/^\\[?(.*?)\\]?:(\\d+)$/.exec(e.JINDOU_API_LISTEN||'127.0.0.1:5001')||[],h=!m[1]||m[1]==='0.0.0.0'?'127.0.0.1':m[1]==='::'?'::1':m[1],s=e.JINDOU_API_TLS_CERT_FILE?'https':'http';require('node:'+s).get({host:h,port:m[2],path:'/healthz',rejectUnauthorized:false,timeout:2000},r=>process.exit(r.statusCode===200?0:1)).on('timeout',()=>process.exit(1)).on('error',()=>process.exit(1))"]
# In exec form, tini itself receives the signals. It forwards them to Node.js. With -s it does so
# without a warning if another process is process 1 (docker run --init, a shared PID namespace).
ENTRYPOINT ["tini", "-s", "--", "start-jindou"]
CMD ["start"]
