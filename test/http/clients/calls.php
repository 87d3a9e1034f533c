<?php
// Makes the calls that a file lists, and prints the status of each reply. The third argument is
// `streams` or `curl`.

function callWithStreams(string $method, string $url, string $body): int
{
    $http = [
        'method' => $method,
        'header' => 'Content-Type: application/json',
        'content' => $body,
        'ignore_errors' => true,
    ];
    file_get_contents($url, false, stream_context_create(['http' => $http]));
    return (int) explode(' ', $http_response_header[0])[1];
}

function callWithCurl(CurlHandle $curl, string $method, string $url, string $body): int
{
    curl_setopt_array($curl, [
        CURLOPT_URL => $url,
        CURLOPT_CUSTOMREQUEST => $method,
        CURLOPT_POSTFIELDS => $body,
        CURLOPT_HTTPHEADER => ['Content-Type: application/json'],
        CURLOPT_RETURNTRANSFER => true,
    ]);
    curl_exec($curl);
    return curl_getinfo($curl, CURLINFO_RESPONSE_CODE);
}

$curl = $argv[3] === 'curl' ? curl_init() : null;
foreach (file($argv[2], FILE_IGNORE_NEW_LINES) as $line) {
    [$method, $path, $body] = explode("\t", $line);
    $url = $argv[1] . $path;
    $status = $curl === null
        ? callWithStreams($method, $url, $body)
        : callWithCurl($curl, $method, $url, $body);
    echo $status, "\n";
}
