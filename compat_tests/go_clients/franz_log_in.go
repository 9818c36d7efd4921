package main

import (
	"encoding/base64"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func franzMechanism(name, who, secret string, isToken bool) sasl.Mechanism {
	auth := scram.Auth{User: who, Pass: secret, IsToken: isToken}
	switch name {
	case "PLAIN":
		return plain.Auth{User: who, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism()
	}
	return auth.AsSha512Mechanism()
}

func franzLogIn(s session, version *kversion.Versions) {
	for _, name := range mechanisms {
		as := kgo.SASL(franzMechanism(name, user, password, false))
		topic := franzTopic(s, version, 1, as)
		franzFill(s, topic, version, as)
		reader := s.franzClient(version, as, kgo.ConsumeTopics(topic))
		equal(franzRead(s, reader), values(count), "values with "+name)
		reader.Close()
		intruder := s.franzClient(version, kgo.SASL(franzMechanism(name, user, "wrong", false)))
		refused(intruder.Ping(s), name)
		intruder.Close()
	}
}

// franzTokens: a user issues a token, who bears it is that user, until it is ended.
func franzTokens(s session, version *kversion.Versions) {
	admin := kadm.NewClient(s.franzClient(version, kgo.SASL(franzMechanism("PLAIN", user, password, false))))
	defer admin.Close()
	owner := kadm.Principal{Type: "User", Name: user}
	token, err := admin.CreateDelegationToken(s, kadm.CreateDelegationToken{
		Renewers: []kadm.Principal{{Name: "bob"}}, MaxLifetime: time.Hour,
	})
	must(err, "create a token")
	equal([]any{token.Owner, token.MaxTimestamp.Sub(token.IssueTimestamp)}, []any{owner, time.Hour}, "token")
	shown := func() any {
		described, err := admin.DescribeDelegationTokens(s, owner)
		must(err, "describe tokens")
		for _, one := range described {
			if one.TokenID == token.TokenID {
				return fmt.Sprint(one.Owner.Name, one.Renewers)
			}
		}
		return "none"
	}
	eventually(s, shown, "alice[{User bob}]", "the new token")
	for _, mechanism := range mechanisms[1:] {
		bearer := kgo.SASL(franzMechanism(mechanism, token.TokenID, base64.StdEncoding.EncodeToString(token.HMAC), true))
		topic := franzTopic(s, version, 1, bearer)
		franzFill(s, topic, version, bearer)
		bearing := kadm.NewClient(s.franzClient(version, bearer))
		_, err = bearing.CreateDelegationToken(s, kadm.CreateDelegationToken{MaxLifetime: time.Hour})
		equal(err != nil, true, "a token for the bearer of a token is refused")
		bearing.Close()
	}
	renewed, err := admin.RenewDelegationToken(s, token.HMAC, 30*time.Minute)
	must(err, "renew a token")
	equal(renewed.Before(token.MaxTimestamp), true, "expiry after the renewal")
	_, err = admin.ExpireDelegationToken(s, token.HMAC, -time.Millisecond)
	must(err, "expire a token")
	eventually(s, shown, "none", "the ended token")
	_, err = admin.RenewDelegationToken(s, token.HMAC, time.Minute)
	equal(err != nil, true, "an ended token is not renewed")
}
